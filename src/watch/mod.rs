//! What the controller sees of the cluster: one watch on the pods of TaskRuns that have not ended, one on TaskRuns, one
//! on the namespaces that opted out, one on nodes.
//!
//! ```text
//! follow     one list and watch, kept up for ever       task_runs  Tekton's API: which version, and live reads
//! slim       what is kept of each object                store      all of it, by pod, by owner, by namespace
//! eyes       whether pods are seen at all               nodes      what the cluster can run
//! ```
//!
//! Permissions: `list` and `watch` on pods and `taskruns.tekton.dev`, in the cluster or in each namespace watched;
//! `list` and `watch` on namespaces, unless namespaces are named, and on nodes; `get` on taskruns for live reads.

mod eyes;
mod follow;
mod nodes;
mod slim;
mod store;
mod task_runs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ApiResource, PartialObjectMeta};
use kube::runtime::scheduler::ScheduleRequest;
use kube::runtime::watcher::Event;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

pub(crate) use self::eyes::Eyes;
pub(crate) use self::follow::delays;
use self::follow::{Told, follow};
pub(crate) use self::slim::Seen;
use self::slim::Slim;
pub use self::store::Key;
pub(crate) use self::store::{Entry, Known, Scope, Store, lock};
pub(crate) use self::task_runs::{Live, READ_TIMEOUT, discover, read};
use crate::metrics::controller::{Metrics, Watched};
use crate::pod::contract::INJECT;
use crate::pod::facts::Native;
use crate::pod::model::Pod;
use crate::pod::refusals::Refusal;
use crate::pod::tekton::TASK_RUN;
use crate::pod::versions::{self, Version};

/// Pods that have ended need nothing more, and a cluster keeps thousands of them.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// The first minor version of Kubernetes whose API server streams lists by default.
const STREAMS_SINCE: u32 = 34;

/// What is watched.
#[derive(Clone, Debug)]
pub struct Settings {
    /// These namespaces alone, each with watches of its own; empty = the whole cluster.
    pub namespaces: Vec<String>,
    /// What nodes and API server must be for native sidecars.
    pub native_minimum: Version,
}

impl Default for Settings {
    fn default() -> Self {
        Self { namespaces: Vec::new(), native_minimum: versions::SURE }
    }
}

impl Settings {
    pub(crate) fn scopes(&self) -> Vec<Scope> {
        if self.namespaces.is_empty() {
            return vec![Scope::Cluster];
        }
        let names: std::collections::BTreeSet<&str> = self.namespaces.iter().map(String::as_str).collect();
        names.into_iter().map(|name| Scope::Namespace(name.into())).collect()
    }
}

/// Where the pods go that are to be looked at.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    sender: futures::channel::mpsc::UnboundedSender<ScheduleRequest<Key>>,
    wanted: Arc<AtomicBool>,
}

impl Look {
    pub(crate) fn new(sender: futures::channel::mpsc::UnboundedSender<ScheduleRequest<Key>>) -> Self {
        Self { sender, wanted: Arc::new(AtomicBool::new(false)) }
    }

    /// Whether anybody looks. A standby does not, and looks at everything once it leads: what it queued until then would
    /// only pile up.
    pub(crate) fn wanted(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// At each of these, now.
    pub(crate) fn at(&self, keys: Vec<Key>) {
        let now = Instant::now();
        for key in keys {
            self.later(key, now);
        }
    }

    /// At this one, then, if not before.
    pub(crate) fn later(&self, key: Key, run_at: Instant) {
        if self.wanted.load(Ordering::Relaxed) {
            // Nobody looks any more only when the controller is going away.
            let _ = self.sender.unbounded_send(ScheduleRequest { message: key, run_at });
        }
    }
}

/// Where what is seen goes.
pub(crate) struct Sinks {
    pub(crate) store: Arc<Store>,
    pub(crate) look: Look,
    pub(crate) eyes: Arc<Eyes>,
    /// Whether nodes and API server can run native sidecars; `None` = not known.
    pub(crate) can: watch::Sender<Option<Native>>,
    /// TaskRuns whose pods were refused, each time one is seen.
    pub(crate) refusals: mpsc::UnboundedSender<Refusal>,
}

/// Starts the watches. None of them ends by itself.
pub(crate) fn start(client: &Client, settings: &Settings, sinks: Sinks, metrics: &Metrics) -> JoinSet<()> {
    let mut watches = JoinSet::new();
    let scopes = settings.scopes();
    let whole_cluster = settings.namespaces.is_empty();
    let minimum = settings.native_minimum;
    let (client, metrics) = (client.clone(), metrics.clone());
    watches.spawn(async move {
        let Sinks { store, look, eyes, can, refusals } = sinks;
        let streams = streams(&client).await;
        let pods = scopes.iter().map(|scope| Box::pin(pods(&client, scope, streams, &store, &look, &eyes, &metrics)));
        let pods = futures::future::select_all(pods);
        let runs = task_runs::run(&client, &scopes, streams, &store, &look, &refusals, &metrics);
        let namespaces = namespaces(&client, whole_cluster, streams, &store, &look, &metrics);
        let nodes = nodes::run(&client, minimum, streams, &can, &metrics);
        tokio::select! {
            _ = pods => {}
            () = runs => {}
            () = namespaces => {}
            () = nodes => {}
        }
    });
    watches
}

async fn pods(
    client: &Client,
    scope: &Scope,
    streams: bool,
    store: &Store,
    look: &Look,
    eyes: &Eyes,
    metrics: &Metrics,
) {
    let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
    let config = follow::config(streams).labels(TASK_RUN).fields(NOT_ENDED);
    follow(api::<Pod>(client, scope, &resource), config, Watched::Pods, metrics, |told| match told {
        Told::Event(event) => {
            look.at(store.apply_pod(scope, unwrap(event)));
        }
        Told::Well => eyes.sees(scope),
        Told::Blind => eyes.is_blind(scope),
        Told::Refused => {}
    })
    .await;
}

async fn namespaces(
    client: &Client,
    whole_cluster: bool,
    streams: bool,
    store: &Store,
    look: &Look,
    metrics: &Metrics,
) {
    if !whole_cluster {
        info!("the label {INJECT} of namespaces is not read, since the namespaces to watch are named");
        look.at(store.lose_namespaces());
        return std::future::pending().await;
    }
    let config = follow::config(streams).labels(&format!("{INJECT}=false"));
    let api: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
    let mut warned = false;
    follow(api, config, Watched::Namespaces, metrics, |told| match told {
        Told::Event(event) => {
            warned = false;
            let name = |namespace: PartialObjectMeta<Namespace>| namespace.metadata.name.unwrap_or_default();
            look.at(store.apply_opt_out(map(event, name)));
        }
        Told::Refused => {
            if !std::mem::replace(&mut warned, true) {
                warn!("namespaces may not be read: none counts as opted out (label {INJECT})");
            }
            look.at(store.lose_namespaces());
        }
        Told::Well | Told::Blind => {}
    })
    .await;
}

async fn streams(client: &Client) -> bool {
    match client.apiserver_version().await {
        Ok(version) => {
            let minor: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
            minor.parse().is_ok_and(|minor: u32| minor >= STREAMS_SINCE)
        }
        Err(error) => {
            info!(%error, "the API server's version is not known: asking for lists in pages");
            false
        }
    }
}

fn api<T: Slim>(client: &Client, scope: &Scope, resource: &ApiResource) -> Api<Seen<T>> {
    match scope {
        Scope::Cluster => Api::all_with(client.clone(), resource),
        Scope::Namespace(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
    }
}

fn unwrap<T>(event: Event<Seen<T>>) -> Event<T> {
    map(event, |seen| seen.object)
}

fn map<T, U>(event: Event<T>, change: impl FnOnce(T) -> U) -> Event<U> {
    match event {
        Event::Apply(object) => Event::Apply(change(object)),
        Event::Delete(object) => Event::Delete(change(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(change(object)),
        Event::InitDone => Event::InitDone,
    }
}
