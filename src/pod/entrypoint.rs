//! The arguments of Tekton's entrypoint, read as Go's `flag` package reads them, and the two changes we make to them:
//! a file more to wait for, or one less.

/// Flags without a value of their own. (Of every version of Tekton: `cmd/entrypoint/main.go`.)
const BOOLEAN: [&str; 6] = [
    "wait_file_content",
    "breakpoint_on_failure",
    "debug_before_step",
    "enable_spire",
    "compress_termination_message",
    "help",
];

/// Flags with a value, which may well look like a flag itself: a step's command is the user's.
const VALUED: [&str; 19] = [
    "wait_file",
    "post_file",
    "termination_path",
    "results",
    "timeout",
    "on_error",
    "step_metadata_dir",
    "step_metadata_dir_link",
    "stdout_path",
    "stderr_path",
    "result_from",
    "step_results",
    "when_expressions",
    "entrypoint",
    "basic-git",
    "ssh-git",
    "basic-docker",
    "docker-config",
    "docker-cfg",
];

/// One flag as it stands in the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Flag<'a> {
    name: &'a str,
    value: Option<&'a str>,
    /// Where the value stands, if there is one; the flag's own place where it is written `-flag=value`.
    value_at: usize,
}

/// The flags of an entrypoint, up to the `--` that starts what belongs to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags<'a>(Vec<Flag<'a>>);

impl<'a> Flags<'a> {
    /// Reads up to the first `--`, or to the first argument that is no flag.
    #[must_use]
    pub fn read(args: &'a [String]) -> Self {
        let mut flags = Vec::new();
        let mut at = 0;
        while let Some(arg) = args.get(at) {
            let Some(text) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|text| !text.is_empty())
            else {
                break;
            };
            if let Some((name, value)) = text.split_once('=') {
                flags.push(Flag { name, value: Some(value), value_at: at });
                at += 1;
            } else if takes_value(text, args.get(at + 1)) {
                flags.push(Flag { name: text, value: args.get(at + 1).map(String::as_str), value_at: at + 1 });
                at += 2;
            } else {
                flags.push(Flag { name: text, value: None, value_at: at });
                at += 1;
            }
        }
        Self(flags)
    }

    /// A flag's value. Of two of a name the last holds, as in Go.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&'a str> {
        self.last(name).and_then(|flag| flag.value)
    }

    /// A boolean flag is set.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.last(name)
            .is_some_and(|flag| matches!(flag.value, None | Some("true" | "1" | "t" | "T" | "TRUE" | "True")))
    }

    /// The files that the entrypoint waits for before it starts the step.
    pub fn waits_for(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.value("wait_file").unwrap_or_default().split(',').filter(|file| !file.is_empty())
    }

    fn last(&self, name: &str) -> Option<&Flag<'a>> {
        self.0.iter().rev().find(|flag| flag.name == name)
    }
}

/// A flag newer than this build takes a value unless another flag follows.
fn takes_value(name: &str, next: Option<&String>) -> bool {
    !BOOLEAN.contains(&name) && (VALUED.contains(&name) || next.is_some_and(|next| !next.starts_with('-')))
}

/// How the first step's arguments change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Replace the argument at this place.
    Replace(usize, String),
    /// Insert these, in this order, in front of all others.
    Prepend([String; 3]),
}

/// Why the arguments cannot be made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// It waits for a file's existence: with our file beside it, it would start at once, or wait for content that nobody
    /// writes. No version of Tekton does this to a first step.
    #[error("its first step waits for a file without -wait_file_content")]
    WaitsForExistence,
    /// `-wait_file` is the last argument, or its value is the `--` that should have ended the flags: the entrypoint will
    /// not start the step anyway.
    #[error("its first step has a -wait_file without a value")]
    NoValue,
}

/// Makes an entrypoint wait for a file's content too: merged into what it waits for already, never a second `-wait_file`
/// (of two the last holds, and one wait would be lost without a word). `None` if it waits for it already.
///
/// # Errors
/// If the arguments have a shape that we do not know how to change safely.
pub fn wait_for(args: &[String], file: &str) -> Result<Option<Change>, Unknown> {
    let flags = Flags::read(args);
    if flags.waits_for().any(|other| other == file) {
        return Ok(None);
    }
    match flags.last("wait_file") {
        None => Ok(Some(Change::Prepend(["-wait_file".into(), file.into(), "-wait_file_content".into()]))),
        Some(_) if !flags.is_set("wait_file_content") => Err(Unknown::WaitsForExistence),
        Some(flag) => match args.get(flag.value_at).filter(|argument| flag.value.is_some() && *argument != "--") {
            Some(argument) => {
                let comma = if flag.value.is_some_and(str::is_empty) { "" } else { "," };
                Ok(Some(Change::Replace(flag.value_at, format!("{argument}{comma}{file}"))))
            }
            None => Err(Unknown::NoValue),
        },
    }
}

/// Takes a file out of what an entrypoint waits for. What is left may be nothing: an empty `-wait_file` waits for nothing
/// (Tekton ≥ 0.2), and taking the flag itself away might uncover another. `None` if it does not wait for it.
#[must_use]
pub fn wait_no_more_for(args: &[String], file: &str) -> Option<Change> {
    let flags = Flags::read(args);
    let flag = flags.last("wait_file")?;
    let value = flag.value?;
    let left: Vec<&str> = value.split(',').filter(|other| *other != file).collect();
    let left = left.join(",");
    if left == value {
        return None;
    }
    let argument = args.get(flag.value_at)?;
    let name = argument.strip_suffix(value).unwrap_or_default();
    Some(Change::Replace(flag.value_at, format!("{name}{left}")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn args(text: &str) -> Vec<String> {
        text.split(' ').filter(|arg| !arg.is_empty()).map(|arg| arg.trim_matches('\'').to_owned()).collect()
    }

    const GATE_FILE: &str = "/kickstand/ready";

    fn applied(mut args: Vec<String>, change: Option<Change>) -> Vec<String> {
        match change {
            Some(Change::Replace(at, argument)) => args[at] = argument,
            Some(Change::Prepend(arguments)) => {
                args.splice(0..0, arguments);
            }
            None => {}
        }
        args
    }

    /// The arguments once they wait for the gate.
    fn changed(before: &str) -> String {
        let args = args(before);
        let change = wait_for(&args, GATE_FILE).unwrap();
        applied(args, change).join(" ")
    }

    #[rstest]
    #[case::the_only_one("-wait_file /a -wait_file_content -- x", "-wait_file '' -wait_file_content -- x")]
    #[case::in_one_argument("--wait_file=/a -wait_file_content -- x", "--wait_file= -wait_file_content -- x")]
    #[case::of_several("-wait_file /b,/a,/c -- x", "-wait_file /b,/c -- x")]
    #[case::of_several_in_one_argument("-wait_file=/a,/kickstand/ready -- x", "-wait_file=/kickstand/ready -- x")]
    #[case::twice("-wait_file /a,/a -- x", "-wait_file '' -- x")]
    #[case::of_two_waits_the_one_that_holds("-wait_file /a -wait_file /a,/b -- x", "-wait_file /a -wait_file /b -- x")]
    fn a_file_is_taken_out_of_a_wait(#[case] before: &str, #[case] after: &str) {
        let before = args(before);
        let change = wait_no_more_for(&before, "/a");
        assert!(change.is_some());
        assert_eq!(applied(before, change), args(after));
    }

    #[rstest]
    #[case::no_wait("-post_file /0 -- x")]
    #[case::another_file("-wait_file /ab,/b/a -- x")]
    #[case::the_users("-post_file /0 -- -wait_file /a")]
    #[case::no_value("-post_file /0 -wait_file")]
    #[case::the_end_of_the_flags("-wait_file -- /a")]
    fn where_no_such_file_is_waited_for_nothing_changes(#[case] before: &str) {
        assert_eq!(wait_no_more_for(&args(before), "/a"), None);
    }

    #[rstest]
    #[case("-wait_file /a -wait_file_content -post_file /0 -- x")]
    #[case("-wait_file=/a -wait_file_content -post_file /0 -- x")]
    #[case("-wait_file /b,/a -wait_file_content -post_file /0 -- x")]
    fn what_was_taken_out_can_be_put_back(#[case] before: &str) {
        let before = args(before);
        let without = applied(before.clone(), wait_no_more_for(&before, "/a"));
        let change = wait_for(&without, "/a").unwrap();
        assert_eq!(applied(without, change), before);
    }

    #[rstest]
    #[case::two_arguments(
        "-wait_file /tekton/downward/ready -wait_file_content -post_file /tekton/run/0/out -- true",
        "-wait_file /tekton/downward/ready,/kickstand/ready -wait_file_content -post_file /tekton/run/0/out -- true"
    )]
    #[case::two_dashes(
        "--wait_file /a --wait_file_content -- true",
        "--wait_file /a,/kickstand/ready --wait_file_content -- true"
    )]
    #[case::one_argument(
        "-wait_file=/a -wait_file_content -- true",
        "-wait_file=/a,/kickstand/ready -wait_file_content -- true"
    )]
    #[case::one_argument_with_two_dashes(
        "--wait_file=/a --wait_file_content=true -- true",
        "--wait_file=/a,/kickstand/ready --wait_file_content=true -- true"
    )]
    #[case::the_flag_for_content_in_front(
        "-wait_file_content -wait_file /a -- true",
        "-wait_file_content -wait_file /a,/kickstand/ready -- true"
    )]
    #[case::several_files_already(
        "-wait_file /a,/b -wait_file_content -- true",
        "-wait_file /a,/b,/kickstand/ready -wait_file_content -- true"
    )]
    #[case::no_file_yet(
        "-wait_file '' -wait_file_content -- true",
        "-wait_file /kickstand/ready -wait_file_content -- true"
    )]
    #[case::no_file_yet_in_one_argument(
        "-wait_file= -wait_file_content -- true",
        "-wait_file=/kickstand/ready -wait_file_content -- true"
    )]
    fn a_wait_that_is_there_is_merged_into(#[case] before: &str, #[case] after: &str) {
        assert_eq!(changed(before), after);
    }

    #[rstest]
    #[case::none("-post_file /tekton/run/0/out -entrypoint echo -- hello")]
    #[case::only_the_users("-post_file /tekton/run/0/out -- prog -wait_file /a -wait_file_content")]
    #[case::only_as_another_flags_value("-entrypoint -wait_file -post_file /tekton/run/0/out -- hello")]
    fn where_nothing_waits_a_wait_is_put_in_front(#[case] before: &str) {
        assert_eq!(changed(before), format!("-wait_file /kickstand/ready -wait_file_content {before}"));
    }

    #[rstest]
    #[case::merged("-wait_file /a -wait_file_content -post_file /0 -- -wait_file /b")]
    #[case::in_front("-post_file /0 -- true")]
    #[case::of_two("-wait_file /a -wait_file /b -wait_file_content -- true")]
    fn a_second_call_changes_nothing(#[case] before: &str) {
        let once = changed(before);
        assert_eq!(wait_for(&args(&once), GATE_FILE), Ok(None), "{once}");
    }

    #[rstest]
    #[case("-wait_file /a -wait_file_content -- true")]
    #[case("-post_file /0 -- true")]
    #[case("-wait_file /a -wait_file /b -wait_file_content -- true")]
    fn a_second_wait_file_is_never_added(#[case] before: &str) {
        let count = |text: &str| args(text).iter().filter(|arg| *arg == "-wait_file").count();
        assert_eq!(count(&changed(before)), count(before).max(1));
    }

    #[test]
    fn of_two_wait_files_the_last_holds_as_in_go() {
        let before = "-wait_file /lost -wait_file /held -wait_file_content -- true";
        assert_eq!(Flags::read(&args(before)).waits_for().collect::<Vec<_>>(), ["/held"]);
        assert_eq!(changed(before), "-wait_file /lost -wait_file /held,/kickstand/ready -wait_file_content -- true");
        // A gate in the one that is lost is no gate.
        let lost = "-wait_file /kickstand/ready -wait_file /held -wait_file_content -- true";
        assert_eq!(
            changed(lost),
            "-wait_file /kickstand/ready -wait_file /held,/kickstand/ready -wait_file_content -- true"
        );
    }

    #[rstest]
    #[case::absent("-wait_file /a -post_file /0 -- true")]
    #[case::switched_off("-wait_file /a -wait_file_content=false -- true")]
    #[case::switched_off_later("-wait_file /a -wait_file_content -wait_file_content=0 -- true")]
    #[case::only_the_users("-wait_file /a -post_file /0 -- -wait_file_content")]
    fn a_wait_for_mere_existence_is_left_alone(#[case] before: &str) {
        assert_eq!(wait_for(&args(before), GATE_FILE), Err(Unknown::WaitsForExistence));
    }

    #[rstest]
    #[case::nothing_follows("-post_file /0 -wait_file_content -wait_file")]
    #[case::the_end_of_the_flags_follows("-wait_file_content -wait_file -- true")]
    fn a_wait_file_without_a_value_is_left_alone(#[case] before: &str) {
        assert_eq!(wait_for(&args(before), GATE_FILE), Err(Unknown::NoValue));
    }

    #[rstest]
    #[case::a_flag("-entrypoint -post_file -post_file /tekton/run/0/out --", "entrypoint", Some("-post_file"))]
    #[case::the_flag_behind_it(
        "-entrypoint -post_file -post_file /tekton/run/0/out --",
        "post_file",
        Some("/tekton/run/0/out")
    )]
    #[case::two_dashes("-entrypoint -- -post_file /tekton/run/0/out --", "post_file", Some("/tekton/run/0/out"))]
    #[case::an_equals_sign("-basic-git=secret=git -post_file=/a=b --", "post_file", Some("/a=b"))]
    #[case::json("--when_expressions [{\"input\":\"--\"}] -post_file /0 --", "post_file", Some("/0"))]
    #[case::behind_the_flags("-timeout 5s -- -post_file /0", "post_file", None)]
    #[case::behind_what_is_no_flag("-timeout 5s prog -post_file /0", "post_file", None)]
    #[case::behind_a_lone_dash("- -post_file /0", "post_file", None)]
    #[case::behind_a_boolean("-breakpoint_on_failure -post_file /0 --", "post_file", Some("/0"))]
    #[case::behind_a_newer_flag_with_a_value("-of_tomorrow x -post_file /0 --", "post_file", Some("/0"))]
    #[case::behind_a_newer_flag_without("-of_tomorrow -post_file /0 --", "post_file", Some("/0"))]
    #[case::a_newer_flag_at_the_end("-post_file /0 -of_tomorrow -- x -post_file /1", "post_file", Some("/0"))]
    #[case::of_two_the_last("-post_file /1 -post_file /0 --", "post_file", Some("/0"))]
    fn a_flags_value_is_what_go_would_read(#[case] text: &str, #[case] name: &str, #[case] value: Option<&str>) {
        assert_eq!(Flags::read(&args(text)).value(name), value);
    }

    #[rstest]
    #[case("-enable_spire --", true)]
    #[case("--enable_spire=TRUE --", true)]
    #[case("-enable_spire=f --", false)]
    #[case("-enable_spire=nonsense --", false)]
    #[case("-post_file -enable_spire --", false)]
    #[case("--", false)]
    fn a_boolean_is_what_go_would_read(#[case] text: &str, #[case] set: bool) {
        assert_eq!(Flags::read(&args(text)).is_set("enable_spire"), set);
    }
}
