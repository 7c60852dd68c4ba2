//! The controller: event → decide → effects → look again.
//!
//! A replica that does not lead keeps its watches up and does nothing else. When it becomes the leader it looks at every
//! pod; when it ceases to be, whatever is under way is dropped.

mod look;
mod native;

use std::collections::{HashMap, HashSet};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use jiff::Timestamp;
use kube::Client;
use kube::runtime::scheduler::{ScheduleRequest, Scheduler, scheduler};
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use self::look::{Looker, Next};
use self::native::Keeper;
use crate::effects::{self, Effects};
use crate::metrics::controller::Metrics;
use crate::pod::facts::Facts;
use crate::pod::known::Known;
use crate::watch::{self as watches, Eyes, Key, Look, Sinks, Store, delays};

/// After a look that came to nothing, the pod is looked at again so much later, and so on, doubling.
const SHORTEST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// However close the next look is said to be.
const SOONEST: Duration = Duration::from_millis(10);
/// How long a shutdown waits for what is under way.
const DRAIN: Duration = Duration::from_secs(5);

/// How the controller is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What it watches.
    pub watch: watches::Settings,
    /// How it acts.
    pub effects: effects::Settings,
    /// What the names of Tekton's own nop images start with.
    pub tekton_nop_images: Vec<String>,
    /// The table of known sidecars.
    pub known: Known,
    /// How many pods are looked at side by side; at least one.
    pub concurrency: usize,
    /// What it tells the webhook.
    pub facts: watch::Sender<Facts>,
    /// The clock.
    pub now: fn() -> Timestamp,
}

/// Why the controller ended although nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A watch ended, or panicked.
    #[error("the watches ended")]
    Watches(#[source] Option<task::JoinError>),
    /// Nobody can say any more who leads.
    #[error("the leader election ended")]
    Leader,
}

/// Runs the controller until `shutdown`.
///
/// `leader` says whether this replica may act, `sees` whether it could: whether pods are seen. `ready` is called once, when the stores hold what was there at the start
/// (or know that there is nothing to see: no Tekton, or no permission to read TaskRuns).
///
/// # Errors
/// If a part of it ended by itself, or the leader election did.
pub async fn run(
    client: Client,
    settings: Settings,
    metrics: Metrics,
    mut leader: watch::Receiver<bool>,
    sees: watch::Sender<bool>,
    ready: impl FnOnce(),
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let store = Arc::new(Store::new(&settings.watch.scopes(), metrics.clone()));
    let (sender, requests) = futures::channel::mpsc::unbounded();
    let look = Look::new(sender);
    let eyes = Arc::new(Eyes::new(settings.watch.scopes().len(), sees));
    let ((can, known), (refusals, refused)) = (watch::channel(None), mpsc::unbounded_channel());
    let sinks = Sinks { store: Arc::clone(&store), look: look.clone(), eyes: Arc::clone(&eyes), can, refusals };
    let mut watches = watches::start(&client, &settings.watch, sinks, &metrics);
    let keeper = Keeper {
        leader: leader.clone(),
        can: known,
        refusals: refused,
        facts: settings.facts.clone(),
        now: settings.now,
        metrics: metrics.clone(),
    };
    watches.spawn(keeper.run());
    tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        ended = watches.join_next() => return Err(ended_early(ended)),
        () = store.synced() => {}
    }
    info!("what there is has been listed");
    ready();
    eyes.open();

    let effects = Effects::new(client.clone(), settings.effects.clone(), leader.clone(), settings.now, metrics.clone());
    let limit = settings.concurrency.max(1);
    let looker = Arc::new(Looker::new(client, Arc::clone(&store), effects, settings, metrics));
    let mut queue = pin!(scheduler(requests));
    let mut running = Running::default();
    let mut led = false;
    loop {
        let leading = *leader.borrow_and_update();
        looker.leads(leading);
        look.wanted(leading);
        if leading != led {
            led = leading;
            if leading {
                info!("leading: looking at every pod");
                look.at(store.keys());
            } else {
                info!("leading no more");
                running.tasks.abort_all();
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            ended = watches.join_next() => return Err(ended_early(ended)),
            changed = leader.changed() => changed.map_err(|_| Error::Leader)?,
            Some(ended) = running.tasks.join_next_with_id() => running.end(ended, &look, &store),
            Some(key) = next(queue.as_mut(), &running.keys, leading && running.keys.len() < limit) => {
                let looker = Arc::clone(&looker);
                running.start(key.clone(), async move { looker.look(&key).await });
            }
        }
    }
    // What is under way may go on for a moment: the Lease is still ours.
    let drained = async { while running.tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN, drained).await;
    Ok(())
}

fn ended_early(ended: Option<Result<(), task::JoinError>>) -> Error {
    Error::Watches(ended.and_then(Result::err))
}

/// The next pod to look at; none that is being looked at. Without `room`, requests are still taken in and folded
/// together, and none comes out.
async fn next<R>(queue: Pin<&mut Scheduler<Key, R>>, running: &HashSet<Key>, room: bool) -> Option<Key>
where
    R: Stream<Item = ScheduleRequest<Key>>,
{
    if room { queue.hold_unless(|key| !running.contains(key)).next().await } else { queue.hold().next().await }
}

/// The looks under way, one for each pod at most.
#[derive(Default)]
struct Running {
    tasks: JoinSet<Next>,
    by_task: HashMap<task::Id, Key>,
    keys: HashSet<Key>,
}

impl Running {
    fn start(&mut self, key: Key, look: impl Future<Output = Next> + Send + 'static) {
        let id = self.tasks.spawn(look).id();
        self.by_task.insert(id, key.clone());
        self.keys.insert(key);
    }

    fn end(&mut self, ended: Result<(task::Id, Next), task::JoinError>, look: &Look, store: &Store) {
        let (id, next) = match ended {
            Ok((id, next)) => (id, next),
            Err(error) => {
                let id = error.id();
                // A look that was dropped because we lead no more is another leader's to do.
                let next = if error.is_panic() { Next::Failed(None) } else { Next::Nothing };
                if error.is_panic() {
                    error!(pod = ?self.by_task.get(&id), %error, "a look at a pod panicked");
                }
                (id, next)
            }
        };
        let Some(key) = self.by_task.remove(&id) else { return };
        self.keys.remove(&key);
        let Some(entry) = store.pod(&key) else { return };
        let mut memory = watches::lock(&entry.memory);
        let delay = match next {
            Next::Nothing => {
                memory.failures = 0;
                return;
            }
            Next::After(delay) => {
                memory.failures = 0;
                delay.max(SOONEST)
            }
            Next::Failed(asked) => {
                let failures = memory.failures;
                memory.failures = failures.saturating_add(1);
                let delay = delays(SHORTEST_BACKOFF, LONGEST_BACKOFF).nth(failures.min(16) as usize);
                delay.unwrap_or(LONGEST_BACKOFF).max(asked.unwrap_or_default())
            }
        };
        drop(memory);
        look.later(key, Instant::now() + delay);
    }
}
