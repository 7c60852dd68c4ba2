//! The controller against an API server in memory: what it does, and above all what it does not do. Time is paused.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "helpers of tests: what they cannot do fails the test"
)]

mod support;

mod certificates;
mod gating;
mod leading;
mod native;
mod releasing;
mod stopping;
mod tekton;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kickstand::metrics::controller::Metrics;
use kickstand::pod::facts::Facts;
use kickstand::pod::known::Known;
use kickstand::{controller, effects};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use support::FakeApi;
use support::objects::{NOP, namespace};

/// A controller at work.
pub(crate) struct Rig {
    pub(crate) leader: watch::Sender<bool>,
    /// Whether it sees pods.
    pub(crate) sees: watch::Receiver<bool>,
    /// What it tells the webhook.
    pub(crate) facts: watch::Sender<Facts>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) registry: Registry,
    ready: Arc<AtomicBool>,
    task: JoinHandle<Result<(), controller::Error>>,
}

impl Rig {
    /// The leader of a whole cluster.
    pub(crate) async fn leading(api: &FakeApi) -> Self {
        Self::start(api, true, &[]).await
    }

    pub(crate) async fn start(api: &FakeApi, leading: bool, namespaces: &[&str]) -> Self {
        if api.get("namespaces", "ci").is_none() {
            api.put(namespace("ci", false));
        }
        let rig = Self::unready(api, leading, namespaces);
        api.until("the controller is ready", |_| rig.is_ready()).await;
        rig
    }

    pub(crate) fn unready(api: &FakeApi, leading: bool, namespaces: &[&str]) -> Self {
        support::now();
        let (facts, _) = watch::channel(Facts::default());
        let settings = controller::Settings {
            watch: kickstand::watch::Settings {
                namespaces: namespaces.iter().map(|&name| name.to_owned()).collect(),
                ..kickstand::watch::Settings::default()
            },
            effects: effects::Settings { nop_image: NOP.to_owned(), instance: "kickstand-0".to_owned() },
            tekton_nop_images: Vec::new(),
            known: Known::builtin().clone(),
            concurrency: 4,
            facts: facts.clone(),
            now: support::now,
        };
        let (leader, leads) = watch::channel(leading);
        let (seeing, sees) = watch::channel(false);
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let shutdown = CancellationToken::new();
        let ready = Arc::new(AtomicBool::new(false));
        let now_ready = {
            let ready = Arc::clone(&ready);
            move || ready.store(true, Ordering::Relaxed)
        };
        let run = controller::run(api.client(), settings, metrics, leads, seeing, now_ready, shutdown.clone());
        Self { leader, sees, facts, shutdown, registry, ready, task: tokio::spawn(run) }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// A metric's value, by its name and labels in the text format.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {series} in\n{text}"))
    }

    /// Lets everything happen that is going to within so many seconds.
    pub(crate) async fn settle(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap();
    }
}
