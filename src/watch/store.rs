//! What the watches have shown: live pods, their TaskRuns, and the namespaces that opted out.
//!
//! It lags behind the cluster, and its parts lag behind each other: it proposes, and live reads and guarded patches
//! decide.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::api::ApiResource;
use kube::runtime::watcher::Event;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::controller::Metrics;
use crate::pod::contract::Reason;
use crate::pod::model::Pod;
use crate::pod::verdict::TaskRun;
use crate::pod::{decide, gate, tekton};

/// A namespaced object's name. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Key {
    /// A key of these two.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    fn of(pod: &Pod) -> Self {
        Self::new(&pod.metadata.namespace, &pod.metadata.name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A pod, as the watch showed it last.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) pod: Arc<Pod>,
    /// When the watch showed it so.
    pub(crate) seen: Instant,
    /// What this process remembers of it; goes when the pod goes.
    pub(crate) memory: Arc<Mutex<Memory>>,
}

/// What a process remembers of a pod. Nothing depends on it but courtesy: not saying a thing twice, not asking too often.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// What was said already.
    pub(crate) said: BTreeSet<(Reason, String)>,
    /// Since when there has been a verdict, without a break.
    pub(crate) verdict_seen: Option<Timestamp>,
    /// The version of the pod that was patched last: the watch has yet to show what became of it.
    pub(crate) patched: Option<String>,
    /// Looks in a row that came to nothing.
    pub(crate) failures: u32,
    steps_done: Option<Instant>,
}

/// What is known of a pod's TaskRun.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Known {
    /// TaskRuns are not seen at all, not yet or not any more: that says nothing of this one.
    Nothing,
    /// There it is.
    Run(Arc<TaskRun>),
    /// Others are seen, this one is not: it is gone, or new.
    Missing,
}

/// Which part of the cluster a watch covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    Cluster,
    Namespace(Arc<str>),
}

impl Scope {
    fn covers(&self, namespace: &str) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(ours) => **ours == *namespace,
        }
    }
}

/// How it stands with one watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Its first list is not done.
    Unknown,
    /// Listed, and followed since.
    Listed,
    /// There is nothing to see: not served, or not permitted.
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Store {
    inner: Mutex<Inner>,
    synced: watch::Sender<Synced>,
    metrics: Metrics,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Synced {
    pods: bool,
    all: bool,
}

#[derive(Debug)]
struct Inner {
    pods: HashMap<Key, Entry>,
    by_owner: HashMap<String, BTreeSet<Key>>,
    gates_shut: usize,
    pod_scopes: Vec<Watch>,
    runs: HashMap<Key, Arc<TaskRun>>,
    run_scopes: Vec<Watch>,
    served: Option<ApiResource>,
    opted_out: HashSet<String>,
    listing_opted_out: HashSet<String>,
    namespaces: Sight,
}

#[derive(Debug)]
struct Watch {
    scope: Scope,
    sight: Sight,
    listing: HashSet<Key>,
}

impl Watch {
    fn all(scopes: &[Scope]) -> Vec<Self> {
        let watch = |scope: &Scope| Self { scope: scope.clone(), sight: Sight::Unknown, listing: HashSet::new() };
        scopes.iter().map(watch).collect()
    }
}

impl Store {
    pub(crate) fn new(scopes: &[Scope], metrics: Metrics) -> Self {
        let inner = Inner {
            pods: HashMap::new(),
            by_owner: HashMap::new(),
            gates_shut: 0,
            pod_scopes: Watch::all(scopes),
            runs: HashMap::new(),
            run_scopes: Watch::all(scopes),
            served: None,
            opted_out: HashSet::new(),
            listing_opted_out: HashSet::new(),
            namespaces: Sight::Unknown,
        };
        Self { inner: Mutex::new(inner), synced: watch::channel(Synced::default()).0, metrics }
    }

    /// Waits until every pod that was there at the start is in the store.
    pub(crate) async fn pods_synced(&self) {
        // An error would mean that the sender, which we are, is gone.
        let _ = self.synced.subscribe().wait_for(|synced| synced.pods).await;
    }

    /// Waits until everything that was there at the start is in the store, or is known not to be there to see.
    pub(crate) async fn synced(&self) {
        let _ = self.synced.subscribe().wait_for(|synced| synced.all).await;
    }

    pub(crate) fn pod(&self, key: &Key) -> Option<Entry> {
        self.inner().pods.get(key).cloned()
    }

    /// Every pod.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.inner().pods.keys().cloned().collect()
    }

    pub(crate) fn is_opted_out(&self, namespace: &str) -> bool {
        self.inner().opted_out.contains(namespace)
    }

    /// The TaskRun that owns a pod.
    pub(crate) fn task_run(&self, pod: &Pod) -> Known {
        let inner = self.inner();
        let namespace = pod.metadata.namespace.as_str();
        let seen = inner.run_scopes.iter().any(|watch| watch.scope.covers(namespace) && watch.sight == Sight::Listed);
        let Some(owner) = tekton::owner(pod).filter(|_| seen) else { return Known::Nothing };
        match inner.runs.get(&Key::new(namespace, &owner.name)) {
            Some(run) if run.metadata.uid == owner.uid => Known::Run(Arc::clone(run)),
            // One of that name from before, or after: ours is not seen.
            _ => Known::Missing,
        }
    }

    /// The version of Tekton's API in which TaskRuns are served now.
    pub(crate) fn served(&self) -> Option<ApiResource> {
        self.inner().served.clone()
    }

    pub(crate) fn set_served(&self, served: Option<ApiResource>) {
        self.inner().served = served;
    }

    /// Takes in what a watch on pods showed; returns the pods to look at.
    pub(crate) fn apply_pod(&self, scope: &Scope, event: Event<Pod>) -> Vec<Key> {
        let mut inner = self.inner();
        let looks = match event {
            Event::Init => {
                inner.pod_watch(scope, |watch| watch.listing.clear());
                Vec::new()
            }
            Event::InitApply(pod) => {
                let key = inner.put_pod(pod);
                inner.pod_watch(scope, |watch| watch.listing.insert(key.clone()));
                vec![key]
            }
            Event::InitDone => {
                let mut listed = HashSet::new();
                inner.pod_watch(scope, |watch| {
                    watch.sight = Sight::Listed;
                    listed = std::mem::take(&mut watch.listing);
                });
                let gone: Vec<Key> = inner
                    .pods
                    .keys()
                    .filter(|key| scope.covers(&key.namespace) && !listed.contains(key))
                    .cloned()
                    .collect();
                for key in gone {
                    inner.drop_pod(&key);
                }
                Vec::new()
            }
            Event::Apply(pod) if decide::is_terminal(&pod) => {
                self.ended(&mut inner, &pod);
                Vec::new()
            }
            Event::Apply(pod) => vec![inner.put_pod(pod)],
            // The watch asks for pods that have not ended: one that ends leaves it as if deleted.
            Event::Delete(pod) => {
                self.ended(&mut inner, &pod);
                Vec::new()
            }
        };
        self.metrics.holds(inner.pods.len(), inner.gates_shut);
        self.note_synced(&inner);
        looks
    }

    /// Takes in what a watch on TaskRuns showed; returns the pods to look at.
    pub(crate) fn apply_run(&self, scope: &Scope, event: Event<TaskRun>) -> Vec<Key> {
        let mut inner = self.inner();
        let looks = match event {
            Event::Init => {
                inner.run_watch(scope, |watch| watch.listing.clear());
                Vec::new()
            }
            Event::InitApply(run) => {
                let key = Key::new(&run.metadata.namespace, &run.metadata.name);
                let looks = inner.pods_of(&run);
                inner.put_run(run);
                inner.run_watch(scope, |watch| watch.listing.insert(key));
                looks
            }
            Event::InitDone => {
                let mut listed = HashSet::new();
                let mut first = false;
                inner.run_watch(scope, |watch| {
                    first = watch.sight != Sight::Listed;
                    watch.sight = Sight::Listed;
                    listed = std::mem::take(&mut watch.listing);
                });
                let mut looks = BTreeSet::new();
                if first {
                    // Those whose TaskRun is not among them have not been looked at in that light.
                    looks.extend(inner.pods.keys().filter(|key| scope.covers(&key.namespace)).cloned());
                }
                let gone = |key: &Key| scope.covers(&key.namespace) && !listed.contains(key);
                let uids: Vec<String> =
                    (inner.runs.iter()).filter(|(key, _)| gone(key)).map(|(_, run)| run.metadata.uid.clone()).collect();
                looks.extend(uids.iter().filter_map(|uid| inner.by_owner.get(uid)).flatten().cloned());
                inner.runs.retain(|key, _| !gone(key));
                looks.into_iter().collect()
            }
            Event::Apply(run) => {
                let looks = inner.pods_of(&run);
                inner.put_run(run);
                looks
            }
            Event::Delete(run) => {
                inner.runs.remove(&Key::new(&run.metadata.namespace, &run.metadata.name));
                inner.pods_of(&run)
            }
        };
        self.note_synced(&inner);
        looks
    }

    /// TaskRuns are not there to be seen: not served, or not permitted. Nothing is known of any until they are again.
    pub(crate) fn lose_runs(&self, scope: &Scope) {
        let mut inner = self.inner();
        inner.run_watch(scope, |watch| {
            watch.sight = Sight::Nothing;
            watch.listing.clear();
        });
        inner.runs.retain(|key, _| !scope.covers(&key.namespace));
        self.note_synced(&inner);
    }

    /// Takes in what the watch on opted-out namespaces showed, by name; returns the pods to look at.
    pub(crate) fn apply_opt_out(&self, event: Event<String>) -> Vec<Key> {
        let mut inner = self.inner();
        let changed: HashSet<String> = match event {
            Event::Init => {
                inner.listing_opted_out.clear();
                HashSet::new()
            }
            Event::InitApply(name) => {
                inner.listing_opted_out.insert(name);
                HashSet::new()
            }
            Event::InitDone => {
                inner.namespaces = Sight::Listed;
                let listed = std::mem::take(&mut inner.listing_opted_out);
                let before = std::mem::replace(&mut inner.opted_out, listed);
                before.symmetric_difference(&inner.opted_out).cloned().collect()
            }
            Event::Apply(name) if inner.opted_out.insert(name.clone()) => HashSet::from([name]),
            Event::Apply(_) => HashSet::new(),
            Event::Delete(name) => inner.opted_out.take(&name).into_iter().collect(),
        };
        let looks = inner.pods.keys().filter(|key| changed.contains(&*key.namespace)).cloned().collect();
        self.note_synced(&inner);
        looks
    }

    /// Namespaces are not there to be seen: none counts as opted out.
    pub(crate) fn lose_namespaces(&self) -> Vec<Key> {
        let mut inner = self.inner();
        inner.namespaces = Sight::Nothing;
        let before = std::mem::take(&mut inner.opted_out);
        let looks = inner.pods.keys().filter(|key| before.contains(&*key.namespace)).cloned().collect();
        self.note_synced(&inner);
        looks
    }

    fn ended(&self, inner: &mut Inner, pod: &Pod) {
        let Some(entry) = inner.drop_pod(&Key::of(pod)) else { return };
        let done = lock(&entry.memory).steps_done;
        // One that was deleted did not end by itself; and one replaced by another of its name is not this one.
        if let Some(done) = done.filter(|_| pod.metadata.deletion_timestamp.is_none()) {
            self.metrics.ended_after(done.elapsed());
        }
    }

    fn note_synced(&self, inner: &Inner) {
        let pods = inner.pod_scopes.iter().all(|watch| watch.sight != Sight::Unknown);
        let runs = inner.run_scopes.iter().all(|watch| watch.sight != Sight::Unknown);
        let now = Synced { pods, all: pods && runs && inner.namespaces != Sight::Unknown };
        self.synced.send_if_modified(|synced| std::mem::replace(synced, now) != now);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

impl Inner {
    fn pod_watch<T>(&mut self, scope: &Scope, change: impl FnOnce(&mut Watch) -> T) {
        self.pod_scopes.iter_mut().find(|watch| watch.scope == *scope).map(change);
    }

    fn run_watch<T>(&mut self, scope: &Scope, change: impl FnOnce(&mut Watch) -> T) {
        self.run_scopes.iter_mut().find(|watch| watch.scope == *scope).map(change);
    }

    fn put_pod(&mut self, pod: Pod) -> Key {
        let key = Key::of(&pod);
        let before = self.pods.get(&key).filter(|entry| entry.pod.metadata.uid == pod.metadata.uid);
        let memory = before.map(|entry| Arc::clone(&entry.memory)).unwrap_or_default();
        // Only what we see happen is measured: a pod that was done when first seen may have been so for long.
        let was_at_work = before.is_some_and(|entry| decide::steps_done_at(&entry.pod).is_none());
        if was_at_work && decide::steps_done_at(&pod).is_some() {
            lock(&memory).steps_done = Some(Instant::now());
        }
        self.drop_pod_keeping_run(&key);
        self.gates_shut += usize::from(gate::is_shut(&pod));
        if let Some(owner) = tekton::owner(&pod) {
            self.by_owner.entry(owner.uid.clone()).or_default().insert(key.clone());
        }
        self.pods.insert(key.clone(), Entry { pod: Arc::new(pod), seen: Instant::now(), memory });
        key
    }

    fn drop_pod(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.drop_pod_keeping_run(key)?;
        if let Some(owner) = tekton::owner(&entry.pod) {
            let run = Key::new(&key.namespace, &owner.name);
            let unused = !self.by_owner.contains_key(&owner.uid);
            if unused && self.runs.get(&run).is_some_and(|run| is_over(run)) {
                self.runs.remove(&run);
            }
        }
        Some(entry)
    }

    fn drop_pod_keeping_run(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.pods.remove(key)?;
        self.gates_shut -= usize::from(gate::is_shut(&entry.pod));
        if let Some(owner) = tekton::owner(&entry.pod)
            && let Some(keys) = self.by_owner.get_mut(&owner.uid)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_owner.remove(&owner.uid);
            }
        }
        Some(entry)
    }

    /// A cluster keeps thousands of runs that are over: only those with a pod that is not are kept. (Missing another
    /// one's is no harm: what is missing is read live before anything is made of it.)
    fn put_run(&mut self, run: TaskRun) {
        let key = Key::new(&run.metadata.namespace, &run.metadata.name);
        if is_over(&run) && !self.by_owner.contains_key(&run.metadata.uid) {
            self.runs.remove(&key);
        } else {
            self.runs.insert(key, Arc::new(run));
        }
    }

    /// The pods that a TaskRun has anything to say about: those it owns, and those it names.
    fn pods_of(&self, run: &TaskRun) -> Vec<Key> {
        let mut keys: BTreeSet<Key> = self.by_owner.get(&run.metadata.uid).cloned().unwrap_or_default();
        let named = run.status.retries_status.iter().map(|attempt| &attempt.pod_name).chain([&run.status.pod_name]);
        let named = named.filter(|name| !name.is_empty()).map(|name| Key::new(&run.metadata.namespace, name));
        keys.extend(named.filter(|key| self.pods.contains_key(key)));
        keys.into_iter().collect()
    }
}

fn is_over(run: &TaskRun) -> bool {
    run.status.conditions.iter().any(|condition| condition.kind == "Succeeded" && condition.status != "Unknown")
}

/// A lock whose holder panicked is as good as any: nothing is left half done under these.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
