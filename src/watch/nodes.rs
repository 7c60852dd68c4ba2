//! What the cluster can run: its nodes, and the API server's own version. Nothing else waits for it, and a failure here
//! costs nothing but the answer.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ApiResource};
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::follow::{self, Told, delays, follow};
use super::slim::Seen;
use super::store::lock;
use crate::metrics::controller::{Metrics, Watched};
use crate::pod::facts::Native;
use crate::pod::versions::{self, Node, Version};

/// How often the API server is asked for its version: it is replaced while we run.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// How long an answer holds while nobody answers.
const ANSWER_HOLDS: Duration = Duration::from_secs(300);
const SHORTEST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// Both halves of the answer; without either, it is not known.
struct Cluster<'a> {
    minimum: Version,
    can: &'a watch::Sender<Option<Native>>,
    halves: Mutex<Halves>,
}

#[derive(Default)]
struct Halves {
    server: Option<String>,
    nodes: Option<BTreeMap<String, Node>>,
    listing: BTreeMap<String, Node>,
}

impl Cluster<'_> {
    /// Takes something in, and says what follows from it if that is news.
    fn learn(&self, change: impl FnOnce(&mut Halves)) {
        let mut halves = lock(&self.halves);
        change(&mut halves);
        let Halves { server, nodes, .. } = &*halves;
        let both = server.as_deref().zip(nodes.as_ref());
        let answer = both.map(|(server, nodes)| versions::native(self.minimum, server, nodes.values()));
        self.can.send_if_modified(|can| {
            let news = *can != answer;
            if news {
                match &answer {
                    Some(Native::Possible) => info!("every node and the API server can run native sidecars"),
                    Some(Native::Impossible(why)) => info!(why, "this cluster cannot run native sidecars"),
                    None => info!("it is not known any more whether this cluster can run native sidecars"),
                }
                *can = answer;
            }
            news
        });
    }

    fn apply(&self, event: Event<Node>) {
        let name = |node: &Node| node.name.clone();
        match event {
            Event::Init => lock(&self.halves).listing.clear(),
            Event::InitApply(node) => {
                lock(&self.halves).listing.insert(name(&node), node);
            }
            Event::InitDone => self.learn(|halves| halves.nodes = Some(std::mem::take(&mut halves.listing))),
            // Every kubelet tells its status every few minutes, and hardly ever anything that matters here.
            Event::Apply(node) if self.knows(&node) => {}
            // Without a list, one node is not all of them.
            Event::Apply(node) => self.learn(|halves| {
                halves.nodes.as_mut().map(|nodes| nodes.insert(name(&node), node));
            }),
            Event::Delete(node) => self.learn(|halves| {
                halves.nodes.as_mut().map(|nodes| nodes.remove(&node.name));
            }),
        }
    }

    fn knows(&self, node: &Node) -> bool {
        lock(&self.halves).nodes.as_ref().is_some_and(|nodes| nodes.get(&node.name) == Some(node))
    }
}

/// Keeps `can` up to date; never returns.
pub(super) async fn run(
    client: &Client,
    minimum: Version,
    streams: bool,
    can: &watch::Sender<Option<Native>>,
    metrics: &Metrics,
) {
    let cluster = Cluster { minimum, can, halves: Mutex::default() };
    tokio::join!(follow_nodes(client, streams, &cluster, metrics), ask_version(client, &cluster));
}

async fn follow_nodes(client: &Client, streams: bool, cluster: &Cluster<'_>, metrics: &Metrics) {
    let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Node>(&());
    let mut warned = false;
    loop {
        let api: Api<Seen<Node>> = Api::all_with(client.clone(), &resource);
        follow(api, follow::config(streams), Watched::Nodes, metrics, |told| match told {
            Told::Event(event) => {
                warned &= matches!(event, Event::Init);
                cluster.apply(super::unwrap(event));
            }
            Told::Refused => {
                if !std::mem::replace(&mut warned, true) {
                    warn!(
                        "nodes may not be read: it is not known whether they can run native sidecars, so there are none"
                    );
                }
                cluster.learn(|halves| halves.nodes = None);
            }
            Told::Blind => cluster.learn(|halves| halves.nodes = None),
            Told::Well => {}
        })
        .await;
        // Not served: an API server without nodes is a strange one, and no reason to give up.
        cluster.learn(|halves| halves.nodes = None);
        sleep(LONGEST_BACKOFF).await;
    }
}

async fn ask_version(client: &Client, cluster: &Cluster<'_>) {
    let mut answered = Instant::now();
    let mut backoff = delays(SHORTEST_BACKOFF, LONGEST_BACKOFF);
    let mut warned = false;
    loop {
        match client.apiserver_version().await {
            Ok(version) => {
                let version = format!("{}.{}", version.major, version.minor);
                cluster.learn(|halves| halves.server = Some(version));
                answered = Instant::now();
                backoff = delays(SHORTEST_BACKOFF, LONGEST_BACKOFF);
                warned = false;
                sleep(ASK_EVERY).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    warn!(%error, "the API server does not say its version: asking again");
                }
                if answered.elapsed() >= ANSWER_HOLDS {
                    cluster.learn(|halves| halves.server = None);
                }
                sleep(backoff.next().unwrap_or(LONGEST_BACKOFF)).await;
            }
        }
    }
}
