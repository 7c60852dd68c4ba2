//! The real nop binary, under the names and arguments of the sidecars that it takes over.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rstest::rstest;

const NOP: &str = env!("CARGO_BIN_EXE_nop");
const FOREVER: &str = "tekton_run_indefinitely";
const STAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/images/stage-nop.sh");

/// A bound for what must happen, not a measure of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// nop behind a link of that name, as in its image.
fn nop_as(name: &str, arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join(name);
    symlink(NOP, &link).unwrap();
    Command::new(link).args(arguments).output().unwrap()
}

#[rstest]
#[case::by_its_own_name("nop", &[])]
#[case::a_loop("sh", &["-c", "while true; do sleep 1; done"])]
#[case::a_failing_script("bash", &["-euo", "pipefail", "-c", "exit 7"])]
#[case::for_ever("sleep", &["infinity"])]
#[case::odd_numbers("sleep", &["-1", "1e9999", ""])]
#[case::an_unknown_flag("sleep", &["--no-such-flag"])]
#[case::help("env", &["--help"])]
#[case::a_script_of_tektons("sh", &["/tekton/scripts/sidecar-script-0-x7f2p"])]
#[case::an_init_wrapper("dumb-init", &["--", "consul-dataplane", "-addresses", "x"])]
#[case::its_word_elsewhere_than_first("sh", &["-c", FOREVER])]
#[case::nearly_its_word("sh", &["tekton_run_indefinitely "])]
#[case::not_ascii("sh", &["-c", "échô ☃\u{1b}[31m"])]
fn it_says_that_it_took_over_and_exits_0(#[case] name: &str, #[case] arguments: &[&str]) {
    let output = nop_as(name, arguments);
    assert_eq!(output.status.code(), Some(0));
    insta::allow_duplicates! {
        insta::assert_snapshot!(
            String::from_utf8(output.stdout).unwrap(),
            @"kickstand-nop: this TaskRun's steps are done, so this sidecar was stopped. That is expected."
        );
    }
    assert_eq!(output.stderr, b"");
}

#[test]
fn an_argument_that_is_not_utf8_is_ignored_too() {
    use std::os::unix::ffi::OsStrExt as _;
    let status =
        Command::new(NOP).arg(std::ffi::OsStr::from_bytes(b"\xff\xfe")).stdout(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_closed_pipe_does_not_change_the_exit_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(Command::new(NOP).stdout(writer).status().unwrap().code(), Some(0));
}

#[test]
fn a_full_disk_does_not_change_the_exit_code() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(Command::new(NOP).stdout(full).status().unwrap().code(), Some(0));
}

#[rstest]
#[case::term("TERM", &[])]
#[case::int("INT", &[])]
#[case::whatever_follows("TERM", &["more", "words"])]
fn as_tektons_nop_it_runs_until_it_is_told_to_stop(#[case] signal: &str, #[case] more: &[&str]) {
    let mut nop = Running(Command::new(NOP).arg(FOREVER).args(more).stdout(Stdio::piped()).spawn().unwrap());
    wait_until(|| catches_signals(nop.0.id()));
    assert!(nop.0.try_wait().unwrap().is_none(), "it ended by itself");
    send(signal, nop.0.id());
    assert_eq!(nop.0.wait().unwrap().code(), Some(0));
    let mut output = String::new();
    nop.0.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert_eq!(output, "");
}

/// The kernel drops a signal that PID 1 has no handler for, so this is more than the test above.
#[rstest]
fn so_it_does_as_pid_1(#[values("TERM", "INT")] signal: &str) {
    // As root a PID namespace needs no user namespace, which some machines forbid.
    let unshare = |user: bool| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork"]).args(user.then_some("--map-root-user"));
        command
    };
    let Some(user) = [false, true]
        .into_iter()
        .find(|&user| unshare(user).arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success()))
    else {
        eprintln!("skipped: this machine lets nobody make a PID namespace");
        return;
    };
    let mut outside = Running(unshare(user).arg(NOP).arg(FOREVER).spawn().unwrap());
    let inside = wait_for(|| only_child(outside.0.id()).filter(|&child| catches_signals(child)));
    assert_eq!(status(inside, "NSpid").unwrap().split_whitespace().last(), Some("1"));
    send(signal, inside);
    assert_eq!(outside.0.wait().unwrap().code(), Some(0));
}

#[test]
fn the_image_has_a_link_at_every_path_that_the_controller_counts_on_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("nop-root");
    let stage = || Command::new(STAGE).arg(NOP).arg(&root).output().unwrap();
    // Twice: what an earlier list had laid down must be gone.
    assert!(stage().status.success());
    symlink("/nop", root.join("bin/of-an-earlier-list")).unwrap();
    let output = stage();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let mut links = BTreeSet::new();
    let mut files = BTreeSet::new();
    for path in leaves(&root) {
        let inside = format!("/{}", path.strip_prefix(&root).unwrap().display());
        if path.is_symlink() {
            assert_eq!(fs::read_link(&path).unwrap(), Path::new("/nop"), "{inside}");
            links.insert(inside);
        } else {
            files.insert(inside);
        }
    }
    assert_eq!(links, kickstand::pod::nop::paths().collect::<BTreeSet<_>>());
    // Anything real under a sidecar's command would run the sidecar again.
    assert_eq!(files, BTreeSet::from(["/nop".to_owned()]));
    assert_eq!(fs::read(root.join("nop")).unwrap(), fs::read(NOP).unwrap());
}

#[test]
fn staging_deletes_nothing_that_it_did_not_make() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("precious");
    fs::create_dir(&root).unwrap();
    fs::write(root.join("thesis"), "…").unwrap();
    let output = Command::new(STAGE).arg(NOP).arg(&root).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("is not what this script made"));
    assert!(root.join("thesis").exists());
}

#[test]
fn no_path_is_covered_twice_and_none_lies_below_another() {
    let paths: Vec<String> = kickstand::pod::nop::paths().collect();
    let distinct: BTreeSet<&str> = paths.iter().map(String::as_str).collect();
    assert_eq!(paths.len(), distinct.len());
    for path in &distinct {
        let below = format!("{path}/");
        assert!(!distinct.iter().any(|other| other.starts_with(&below)), "{path} cannot be a link and a folder");
    }
}

#[test]
fn the_image_runs_as_a_numeric_user_and_finds_bare_commands() {
    let dockerfile = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Dockerfile.nop")).unwrap();
    assert!(dockerfile.contains("\nUSER 65532:65532\n"));
    assert!(dockerfile.contains("\nENTRYPOINT [\"/nop\"]\n"));
    let path = dockerfile.lines().find_map(|line| line.strip_prefix("ENV PATH=")).unwrap();
    assert_eq!(path.split(':').collect::<Vec<_>>(), kickstand::pod::nop::FOLDERS);
}

/// A child that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn leaves(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() && !path.is_symlink() { leaves(&path) } else { vec![path] })
        .collect()
}

fn send(signal: &str, process: u32) {
    // The shell's own kill: the program is not on every machine.
    let sent = Command::new("sh").args(["-c", "kill -s $0 $1", signal, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Handlers for both SIGTERM (15) and SIGINT (2) are in place.
fn catches_signals(process: u32) -> bool {
    status(process, "SigCgt")
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| [2, 15].iter().all(|signal| mask & (1 << (signal - 1)) != 0))
}

fn status(process: u32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned))
}

fn only_child(process: u32) -> Option<u32> {
    fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?.trim().parse().ok()
}

fn wait_until(condition: impl Fn() -> bool) {
    wait_for(|| condition().then_some(()));
}

fn wait_for<T>(condition: impl Fn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}
