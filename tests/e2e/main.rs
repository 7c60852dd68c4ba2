//! Kickstand on a real cluster, with a real Tekton: what it promises, seen to happen.
//!
//! [`cases`] holds what is to be seen, a sentence each; [`harness`] brings Tekton and Kickstand into the state that a
//! case asks for, watches, and says what was seen when it was not what was expected. `demo` shows the same to a person,
//! `bench` measures it. Order is asserted here, never a time.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal, not a server")]

mod bench;
mod cases;
mod cli;
mod demo;
mod harness;

use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command, Options};
use harness::lab::Lab;
use harness::runner;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The only TLS there is here: to the API server, and from it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("e2e: no runtime: {error}");
            return ExitCode::from(2);
        }
    };
    match runtime.block_on(dispatch(cli)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// `Ok(false)`: something was seen that should not be.
async fn dispatch(cli: Cli) -> anyhow::Result<bool> {
    match cli.command.unwrap_or_default() {
        Command::List { filter } => {
            runner::list(&cases::all(), &filter, cli.options.output);
            Ok(true)
        }
        Command::Test { filter } => {
            let groups = runner::select(cases::all(), &filter)?;
            on_cluster(cli.options, async |lab| runner::run(lab, groups).await).await
        }
        Command::Demo(args) => on_cluster(cli.options, async |lab| demo::run(lab, &args).await).await,
        Command::Bench(args) => on_cluster(cli.options, async |lab| bench::run(lab, &args).await).await,
    }
}

/// Does something on the cluster, and leaves Tekton as it was, also when it fails or is interrupted.
async fn on_cluster(options: Options, work: impl AsyncFnOnce(&Lab) -> anyhow::Result<bool>) -> anyhow::Result<bool> {
    let lab = Lab::open(options).await?;
    let mut stop = harness::signals()?;
    let done = tokio::select! {
        done = work(&lab) => done,
        name = stop.recv() => Err(anyhow::anyhow!("interrupted by {}", name.unwrap_or("a signal"))),
    };
    eprintln!("cleaning up");
    // A second signal ends it at once.
    tokio::select! {
        () = lab.close() => done,
        _ = stop.recv() => Err(anyhow::anyhow!("interrupted again: Tekton's flags and the namespaces are left as they are")),
    }
}
