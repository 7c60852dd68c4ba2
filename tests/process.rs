//! The real program as a process: it comes up without a cluster to talk to, and leaves when it is told to.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "helpers of tests: what they cannot do fails the test"
)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rstest::rstest;

/// To give up after, not to be measured by.
const PATIENCE: Duration = Duration::from_secs(30);

struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap().keep();
        let kubeconfig = folder.join("kubeconfig");
        // Nobody listens on port 1.
        let nowhere = "{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], \
                       clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: x, user: {}}]}";
        std::fs::write(&kubeconfig, nowhere).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_kickstand"))
            .args(arguments)
            .env("KUBECONFIG", &kubeconfig)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = mpsc::channel();
        let out = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Self { child, lines }
    }

    fn says(&self, words: &str) {
        while !self.lines.recv_timeout(PATIENCE).expect("it fell silent, or ended").contains(words) {}
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    fn ends(&mut self) -> ExitStatus {
        for _ in 0..PATIENCE.as_millis() / 20 {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CONTROLLER: &[&str] =
    &["controller", "--admin-address=127.0.0.1:0", "--namespace=here", "--identity=one", "--nop-image=nop"];
const WEBHOOK: &[&str] = &[
    "webhook",
    "--admin-address=127.0.0.1:0",
    "--listen-address=127.0.0.1:0",
    "--namespace=here",
    concat!("--tls-dir=", env!("CARGO_MANIFEST_DIR"), "/certs"),
    "--drain-grace=0s",
];

#[rstest]
#[case::the_webhook(WEBHOOK, "serving the webhook")]
#[case::the_controller(CONTROLLER, "")]
fn it_leaves_with_0_when_told_to(
    #[case] arguments: &[&str],
    #[case] up: &str,
    #[values("-TERM", "-INT")] signal: &str,
) {
    let mut process = Process::start(arguments);
    process.says(up);
    process.signal(signal);
    assert_eq!(process.ends().code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let listen = format!("--listen-address={address}");
    let mut process = Process::start(&["webhook", "--admin-address=127.0.0.1:0", &listen, "--namespace=here"]);
    process.says(&format!("cannot listen on {address}"));
    assert_eq!(process.ends().code(), Some(1));
}

#[test]
fn a_doctor_without_an_answer_finds_an_error_and_without_a_cluster_cannot_be_used() {
    let mut process = Process::start(&["doctor", "--namespace=ci"]);
    assert_eq!(process.ends().code(), Some(1));
    let mut without = Command::new(env!("CARGO_BIN_EXE_kickstand"));
    let output = without.args(["doctor", "-n", "ci"]).env("KUBECONFIG", "/nonexistent/kubeconfig").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("no cluster to talk to"), "{output:?}");
}
