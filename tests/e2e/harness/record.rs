//! Everything that happened in a namespace, in the order in which it was seen, with the times of its arrival.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::lab::task_run_resource;
use super::pods;

/// One thing that was seen.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) at: Timestamp,
    pub(crate) seen: Seen,
}

#[derive(Clone)]
pub(crate) enum Seen {
    Pod(Arc<Pod>),
    PodGone(String),
    TaskRun(Arc<RunState>),
    Event(Arc<Event>),
}

/// What a TaskRun says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RunState {
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) status: RunStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RunStatus {
    pub(crate) pod_name: String,
    conditions: Vec<Condition>,
    retries_status: Vec<Attempt>,
    steps: Vec<Value>,
    results: Vec<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Attempt {
    pod_name: String,
}

impl RunState {
    /// The condition `Succeeded`, once it is no longer `Unknown`.
    pub(crate) fn verdict(&self) -> Option<&Condition> {
        self.status.conditions.iter().find(|it| it.kind == "Succeeded" && it.status != "Unknown")
    }

    /// How each step ended: its name, Tekton's reason for its end, its exit code.
    pub(crate) fn steps(&self) -> Vec<String> {
        let word = |step: &Value| {
            let reason = step["terminationReason"].as_str().or(step["terminated"]["reason"].as_str()).unwrap_or("?");
            format!("{} {reason} {}", step["name"].as_str().unwrap_or_default(), step["terminated"]["exitCode"])
        };
        self.status.steps.iter().map(word).collect()
    }

    /// What a step has written of a result.
    pub(crate) fn result(&self, name: &str) -> Option<&str> {
        self.status.results.iter().find(|result| result["name"] == name)?["value"].as_str()
    }

    /// The pods of all attempts, the first one first.
    pub(crate) fn pods(&self) -> Vec<&str> {
        let earlier = self.status.retries_status.iter().map(|it| it.pod_name.as_str());
        earlier.chain([self.status.pod_name.as_str()]).filter(|name| !name.is_empty()).collect()
    }
}

/// The record. Cheap to clone; the watches end with the last clone.
#[derive(Clone)]
pub(crate) struct Record {
    shared: Arc<Shared>,
    _watches: Arc<JoinSet<()>>,
}

struct Shared {
    entries: Mutex<Vec<Entry>>,
    changed: watch::Sender<()>,
}

impl Record {
    /// Watches a namespace from now on.
    pub(crate) fn start(client: &Client, namespace: &str) -> Self {
        let shared = Arc::new(Shared { entries: Mutex::default(), changed: watch::Sender::new(()) });
        let mut watches = JoinSet::new();
        let pods = Api::<Pod>::namespaced(client.clone(), namespace);
        watches.spawn(follow(shared.clone(), watcher(pods, watcher::Config::default()), |pod: Pod, gone| {
            if gone { Seen::PodGone(pod.metadata.name.unwrap_or_default()) } else { Seen::Pod(Arc::new(pod)) }
        }));
        let runs = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &task_run_resource());
        watches.spawn(follow(shared.clone(), watcher(runs, watcher::Config::default()), |run: DynamicObject, _| {
            let mut state: RunState = serde_json::from_value(run.data).unwrap_or_default();
            state.name = run.metadata.name.unwrap_or_default();
            Seen::TaskRun(Arc::new(state))
        }));
        let events = Api::<Event>::namespaced(client.clone(), namespace);
        watches.spawn(follow(shared.clone(), watcher(events, watcher::Config::default()), |event: Event, _| {
            Seen::Event(Arc::new(event))
        }));
        Self { shared, _watches: Arc::new(watches) }
    }

    /// Looks at what has been seen so far.
    pub(crate) fn look<T>(&self, ask: impl FnOnce(&View<'_>) -> T) -> T {
        let entries = self.shared.entries.lock().unwrap_or_else(PoisonError::into_inner);
        ask(&View { entries: &entries })
    }

    /// Waits until something has been seen.
    pub(crate) async fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        mut ask: impl FnMut(&View<'_>) -> Option<T>,
    ) -> Result<T> {
        let mut changed = self.shared.changed.subscribe();
        let found = tokio::time::timeout(limit, async {
            loop {
                if let Some(found) = self.look(&mut ask) {
                    return found;
                }
                let _ = changed.changed().await;
            }
        });
        found.await.map_err(|_| anyhow!("waited {} s for this, in vain: {what}", limit.as_secs()))
    }
}

async fn follow<K>(
    shared: Arc<Shared>,
    stream: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    seen: impl Fn(K, bool) -> Seen,
) {
    let mut stream = std::pin::pin!(stream.default_backoff());
    while let Some(event) = stream.next().await {
        let seen = match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => seen(object, false),
            Ok(watcher::Event::Delete(object)) => seen(object, true),
            Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => continue,
        };
        let entry = Entry { at: kickstand::clock::now(), seen };
        shared.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        shared.changed.send_replace(());
    }
}

/// What has been seen so far.
pub(crate) struct View<'a> {
    entries: &'a [Entry],
}

impl View<'_> {
    /// A pod's states, the first one first, with their place in the record.
    pub(crate) fn history(&self, pod: &str) -> impl DoubleEndedIterator<Item = (usize, Timestamp, &Arc<Pod>)> {
        self.entries.iter().enumerate().filter_map(move |(at, entry)| match &entry.seen {
            Seen::Pod(it) if it.metadata.name.as_deref() == Some(pod) => Some((at, entry.at, it)),
            _ => None,
        })
    }

    /// A pod as it was seen last, even if it is gone since.
    pub(crate) fn pod(&self, name: &str) -> Option<Arc<Pod>> {
        self.history(name).next_back().map(|(_, _, pod)| pod.clone())
    }

    pub(crate) fn is_gone(&self, pod: &str) -> bool {
        self.entries.iter().any(|entry| matches!(&entry.seen, Seen::PodGone(name) if name == pod))
    }

    pub(crate) fn run(&self, name: &str) -> Option<Arc<RunState>> {
        self.entries.iter().rev().find_map(|entry| match &entry.seen {
            Seen::TaskRun(run) if run.name == name => Some(run.clone()),
            _ => None,
        })
    }

    /// Events on a pod, the first one first.
    pub(crate) fn events(&self, pod: &str) -> impl Iterator<Item = (Timestamp, &Event)> {
        self.entries.iter().filter_map(move |entry| match &entry.seen {
            Seen::Event(event) if event.involved_object.name.as_deref() == Some(pod) => Some((entry.at, &**event)),
            _ => None,
        })
    }

    /// The first moment at which something held of a pod.
    pub(crate) fn first(&self, pod: &str, holds: impl Fn(&Pod) -> bool) -> Option<(usize, Timestamp)> {
        self.history(pod).find(|(_, _, pod)| holds(pod)).map(|(place, at, _)| (place, at))
    }
}

/// Line by line, each with the seconds since the first; a pod only where it differs from before.
pub(crate) fn timeline(seen: &View<'_>) -> String {
    let mut lines = String::new();
    let Some(start) = seen.entries.first().map(|entry| entry.at) else {
        return "nothing was seen".to_owned();
    };
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    for entry in seen.entries {
        let (what, line) = match &entry.seen {
            Seen::Pod(pod) => {
                (format!("pod {}", pod.metadata.name.as_deref().unwrap_or_default()), pods::in_words(pod))
            }
            Seen::PodGone(name) => (format!("pod {name}"), "gone".to_owned()),
            Seen::TaskRun(run) => {
                let condition = run.status.conditions.iter().find(|it| it.kind == "Succeeded");
                let words = condition.map_or_else(
                    || "created".to_owned(),
                    |it| format!("Succeeded={} {}: {}", it.status, it.reason, it.message),
                );
                (format!("taskrun {}", run.name), words)
            }
            Seen::Event(event) => {
                let of = event.involved_object.name.as_deref().unwrap_or_default();
                let reason = event.reason.as_deref().unwrap_or_default();
                let message = event.message.as_deref().unwrap_or_default();
                (format!("event on {of}"), format!("{reason}: {message}"))
            }
        };
        if last.get(&what) != Some(&line) {
            let seconds = entry.at.duration_since(start).as_secs_f64();
            let _ = writeln!(lines, "{seconds:8.2}  {what}: {line}");
            last.insert(what, line);
        }
    }
    lines
}
