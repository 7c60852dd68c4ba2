//! What a case stands on: the cluster, Tekton's settings, Kickstand's installation, a record of what happens.

pub(crate) mod audit;
pub(crate) mod case;
pub(crate) mod host;
pub(crate) mod injector;
pub(crate) mod install;
pub(crate) mod istio;
pub(crate) mod lab;
pub(crate) mod nodes;
pub(crate) mod pods;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod runner;
pub(crate) mod scene;
pub(crate) mod story;
pub(crate) mod taskrun;
pub(crate) mod tekton;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The names of the signals that ask for an end.
pub(crate) fn signals() -> anyhow::Result<mpsc::UnboundedReceiver<&'static str>> {
    let (told, stop) = mpsc::unbounded_channel();
    for (kind, name) in [(SignalKind::interrupt(), "SIGINT"), (SignalKind::terminate(), "SIGTERM")] {
        let mut stream = signal(kind).with_context(|| format!("cannot listen for {name}"))?;
        let told = told.clone();
        tokio::spawn(async move {
            while stream.recv().await.is_some() {
                let _ = told.send(name);
            }
        });
    }
    Ok(stop)
}
