//! What a stopped sidecar runs: says so, and exits 0.
//!
//! It takes over a sidecar's command as it stands (`sh -c "while …"`, `sleep infinity`), by way of links to itself at
//! the usual paths, so it heeds no argument, reads nothing and does nothing that could fail. The one exception is
//! Tekton's own word for "run until told", so that this image can be Tekton's `-nop-image` too: Tekton's affinity
//! assistant is such a pod.

use std::io::Write as _;
use std::process::ExitCode;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "tekton_run_indefinitely") {
        return run_until_told();
    }
    // Whoever read the sidecar's output may be gone, and a sidecar that was stopped as it should be must not look failed.
    let _ = writeln!(
        std::io::stdout(),
        "kickstand-nop: this TaskRun's steps are done, so this sidecar was stopped. That is expected."
    );
    ExitCode::SUCCESS
}

/// As PID 1 a signal without a handler is dropped, so both are caught.
fn run_until_told() -> ExitCode {
    match Signals::new([SIGTERM, SIGINT]) {
        Ok(mut signals) => {
            signals.forever().next();
            ExitCode::SUCCESS
        }
        // Never 0 at once: whoever asked for a process that stays would start it again, thinking all is well.
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "kickstand-nop: cannot wait for SIGTERM: {error}");
            ExitCode::FAILURE
        }
    }
}
