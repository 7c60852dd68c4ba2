//! The command line: parse, dispatch, exit code.

use std::io::{Write as _, stderr, stdin, stdout};
use std::process::ExitCode;

use clap::Parser as _;
use kickstand::config::{Cli, Command, LogFormat};
use kickstand::{app, inject, telemetry};

/// `sysexits.h` has no word for input that cannot be used but 65 (`EX_DATAERR`); kubectl's and ours is 2, as for a
/// command line that cannot be used.
const UNUSABLE_INPUT: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::Inject(args) = &cli.command {
        return match inject::run(args, stdin().lock(), stdout().lock(), stderr().lock()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(stderr(), "{error}");
                ExitCode::from(UNUSABLE_INPUT)
            }
        };
    }
    match serve(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
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
    // Before the first connection; a second provider cannot be installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // Few threads: each keeps memory of its own, and neither process is ever busy with more.
    let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Webhook(args) => app::webhook(args).await,
            Command::Controller(args) => app::controller(args).await,
            Command::Release(args) => app::release(args).await,
            Command::Inject(_) => Ok(()),
        }
    })
}
