//! The arguments of Tekton's entrypoint, read as Go's `flag` package reads them, and the one change we make to them.

use super::contract::GATE_FILE;

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
    /// Where the value stands; the same as the flag's own place where it is written `-flag=value`.
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

/// How the first step's arguments change so that it waits for the gate.
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
}

/// Makes an entrypoint wait for the gate too: merged into what it waits for already, never a second `-wait_file` (of two
/// the last holds, and one wait would be lost without a word). `None` if it waits for the gate already.
///
/// # Errors
/// If the arguments have a shape that we do not know how to change safely.
pub fn wait_for_gate(args: &[String]) -> Result<Option<Change>, Unknown> {
    let flags = Flags::read(args);
    if flags.waits_for().any(|file| file == GATE_FILE) {
        return Ok(None);
    }
    match flags.last("wait_file") {
        None => Ok(Some(Change::Prepend(["-wait_file".into(), GATE_FILE.into(), "-wait_file_content".into()]))),
        Some(_) if !flags.is_set("wait_file_content") => Err(Unknown::WaitsForExistence),
        Some(flag) => {
            let argument = &args[flag.value_at];
            Ok(Some(Change::Replace(flag.value_at, format!("{argument},{GATE_FILE}"))))
        }
    }
}
