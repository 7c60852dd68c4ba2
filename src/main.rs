//! The command line: parse, dispatch, exit code.

use std::fmt::Display;
use std::io::{Write as _, stderr, stdin, stdout};
use std::process::ExitCode;

use clap::Parser as _;
use kickstand::config::{Cli, Command, LogFormat};
use kickstand::{app, inject, telemetry};

/// `sysexits.h` has no word for input that cannot be used but 65 (`EX_DATAERR`); kubectl's and ours is 2, as for a
/// command line that cannot be used.
const UNUSABLE_INPUT: u8 = 2;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Inject(args) => match inject::run(&args, stdin().lock(), stdout().lock(), stderr().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => unusable(&error),
        },
        Command::Doctor(args) => match asynchronous(app::doctor(args)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => unusable(&format!("{error:#}")),
        },
        command => match serve(command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{error:#}");
                ExitCode::FAILURE
            }
        },
    }
}

fn unusable(error: &dyn Display) -> ExitCode {
    let _ = writeln!(stderr(), "{error}");
    ExitCode::from(UNUSABLE_INPUT)
}

fn serve(command: Command) -> anyhow::Result<()> {
    if let Some(log) = command.log() {
        let format = match log.log_format {
            LogFormat::Json => telemetry::Format::Json,
            LogFormat::Text => telemetry::Format::Text,
        };
        if let Err(error) = telemetry::init(format, &log.log_level) {
            let _ = writeln!(stderr(), "kickstand: {error}");
            return Err(error.into());
        }
    }
    asynchronous(async {
        match command {
            Command::Webhook(args) => app::webhook(args).await,
            Command::Controller(args) => app::controller(args).await,
            Command::Release(args) => app::release(args).await,
            Command::Inject(_) | Command::Doctor(_) => Ok(()),
        }
    })
}

fn asynchronous<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // Before the first connection; a second provider cannot be installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Few threads: each keeps memory of its own, and neither process is ever busy with more.
    let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(work)
}
