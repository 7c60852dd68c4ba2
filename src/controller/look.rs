//! One look at one pod.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Settings;
use crate::effects::{Effects, Outcome};
use crate::metrics::controller::{Metrics, VerdictRead};
use crate::pod::contract::Reason;
use crate::pod::decide::{self, Action, Context, Decision, Effect};
use crate::pod::gate;
use crate::pod::model::Pod;
use crate::pod::tekton;
use crate::pod::verdict::Verdict;
use crate::watch::{self, Entry, Key, Known, Live, Store, lock};

/// When to look again at a pod that was not what it seemed, should the watch stay silent.
const MOVED_ON: Duration = Duration::from_secs(2);
/// When to try again what failed, where something else is due as well.
const FAILED: Duration = Duration::from_secs(10);
/// When to ask again for what was refused: permissions and policies do change.
const REFUSED: Duration = Duration::from_secs(300);

/// When to look at a pod again, if nothing happens before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// When something happens.
    Nothing,
    /// After this long.
    After(Duration),
    /// It came to nothing: with a growing backoff, and not before this long.
    Failed(Option<Duration>),
}

/// Everything that a look needs.
pub(super) struct Looker {
    client: Client,
    store: Arc<Store>,
    effects: Effects,
    settings: Settings,
    metrics: Metrics,
    leading_since: Mutex<Option<Instant>>,
}

impl Looker {
    pub(super) fn new(
        client: Client,
        store: Arc<Store>,
        effects: Effects,
        settings: Settings,
        metrics: Metrics,
    ) -> Self {
        Self { client, store, effects, settings, metrics, leading_since: Mutex::new(None) }
    }

    /// Notes whether we lead.
    pub(super) fn leads(&self, leading: bool) {
        self.metrics.leading(leading);
        let mut since = lock(&self.leading_since);
        *since = if leading { since.or_else(|| Some(Instant::now())) } else { None };
    }

    /// Decides and acts.
    pub(super) async fn look(&self, key: &Key) -> Next {
        let Some(entry) = self.store.pod(key) else { return Next::Nothing };
        let pod = &*entry.pod;
        let patched = lock(&entry.memory).patched.as_ref() == Some(&pod.metadata.resource_version);
        if patched {
            // What was done to it is on its way here, and brings the next look.
            return Next::Nothing;
        }
        let begun = Instant::now();
        let cached = self.cached_verdict(pod);
        let mut decision = self.decide(&entry, cached.clone());
        let mut failed = false;
        if needs_confirmation(pod, &cached, &decision) {
            if let Some(live) = self.live_verdict(pod, &cached).await {
                decision = self.decide(&entry, live);
            } else {
                decision.actions.retain(|action| !action.on_verdict);
                failed = true;
            }
        }
        let mut next = match decision.again_at {
            Some(time) => Next::After(until((self.settings.now)(), time)),
            None => Next::Nothing,
        };
        if failed {
            next = Next::Failed(None);
        }
        // What is to be done before what is only to be said: words must not hold up a gate.
        let (said, done): (Vec<&Action>, Vec<&Action>) =
            decision.actions.iter().partition(|action| matches!(action.effect, Effect::Say { .. }));
        for action in done.into_iter().chain(said) {
            match self.act(&entry, action, begun).await {
                Next::Nothing => {}
                other => next = sooner(next, other),
            }
        }
        next
    }

    fn decide(&self, entry: &Entry, verdict: Verdict) -> Decision {
        let now = (self.settings.now)();
        let verdict_seen = {
            let mut memory = lock(&entry.memory);
            if verdict.is_recorded() {
                memory.verdict_seen.get_or_insert(now);
            } else {
                memory.verdict_seen = None;
            }
            memory.verdict_seen
        };
        let turned = {
            let facts = self.settings.facts.borrow();
            tekton::run_uid(&entry.pod).and_then(|run| facts.turned_classic.get(run).cloned())
        };
        let context = Context {
            verdict,
            verdict_seen,
            now,
            namespace_opted_out: self.store.is_opted_out(&entry.pod.metadata.namespace),
            leaving: false,
            turned_classic: turned.as_ref(),
            nop_image: &self.settings.effects.nop_image,
            tekton_nop_images: &self.settings.tekton_nop_images,
            known: &self.settings.known,
        };
        decide::decide(&entry.pod, &context)
    }

    /// What the watches say.
    fn cached_verdict(&self, pod: &Pod) -> Verdict {
        match self.store.task_run(pod) {
            Known::Nothing => Verdict::None,
            Known::Run(run) => Verdict::of(pod, Some(&run)),
            Known::Missing => Verdict::of(pod, None),
        }
    }

    /// What the TaskRun says now; `None` if nobody answers.
    async fn live_verdict(&self, pod: &Pod, cached: &Verdict) -> Option<Verdict> {
        let Some(served) = self.store.served() else { return Some(Verdict::None) };
        let read = tokio::time::timeout(watch::READ_TIMEOUT, watch::read(&self.client, &served, pod)).await;
        let (result, verdict) = match read {
            Ok(Ok(Live::Run(run))) => (None, Some(Verdict::of(pod, Some(&run)))),
            Ok(Ok(Live::Gone)) => (None, Some(Verdict::of(pod, None))),
            Ok(Ok(Live::Unreadable)) => (Some(VerdictRead::Unreadable), Some(Verdict::None)),
            Ok(Err(error)) => {
                warn!(pod = pod.metadata.name, namespace = pod.metadata.namespace, %error, "could not read the TaskRun");
                (Some(VerdictRead::Unanswered), None)
            }
            Err(_) => (Some(VerdictRead::Unanswered), None),
        };
        let same = verdict.as_ref().is_some_and(|verdict| says_the_same(verdict, cached));
        self.metrics.verdict_read(result.unwrap_or(if same { VerdictRead::Confirmed } else { VerdictRead::Refuted }));
        verdict
    }

    /// Does one thing, and says so.
    async fn act(&self, entry: &Entry, action: &Action, begun: Instant) -> Next {
        let pod = &*entry.pod;
        if let Effect::Say { key } = &action.effect {
            return self.say_once(entry, action.reason, key, &action.message).await;
        }
        if let Effect::TurnClassic { run } = &action.effect {
            warn!(pod = pod.metadata.name, namespace = pod.metadata.namespace, "{}", action.message);
            let now = (self.settings.now)();
            self.settings.facts.send_if_modified(|facts| facts.turns_classic(run, &pod.metadata.uid, now));
            return Next::After(until(now, now + decide::TOLD_AFTER));
        }
        match self.effects.change(pod, &action.effect).await {
            Outcome::Done => {
                self.note_done(entry, action, begun);
                if action.effect != Effect::Nudge {
                    self.effects.say(pod, action.reason, &action.message, &action.message).await;
                }
                Next::Nothing
            }
            Outcome::MovedOn => Next::After(MOVED_ON),
            Outcome::Unanswered(after) => Next::Failed(after),
            Outcome::Deposed => Next::Nothing,
            // The kubelet comes by on its own, later.
            Outcome::Refused { .. } if action.effect == Effect::Nudge => Next::Nothing,
            Outcome::Refused { words } => self.refused(entry, action, &words).await,
        }
    }

    /// A stop that is refused must not leave the pod running: it is ended, if that can cost its run nothing.
    async fn refused(&self, entry: &Entry, action: &Action, words: &str) -> Next {
        let pod = &*entry.pod;
        let Effect::Stop { orders, else_end } = &action.effect else {
            let message = match &action.effect {
                Effect::OpenGate => {
                    // The webhook must add none here: nobody could open it.
                    let (namespace, now) = (&pod.metadata.namespace, (self.settings.now)());
                    self.settings.facts.send_if_modified(|facts| facts.gate_was_refused(namespace, now));
                    format!("the API server refused to have the gate opened: {words}")
                }
                Effect::Replace => {
                    format!("the API server refused to have the pod deleted, so that it is made anew: {words}")
                }
                _ => format!("the API server refused to have the pod ended: {words}"),
            };
            self.say_once(entry, Reason::StopRefused, &message, &message).await;
            return Next::Failed(matches!(action.effect, Effect::End | Effect::Replace).then_some(REFUSED));
        };
        let names: Vec<&str> = orders.iter().map(|order| order.name.as_str()).collect();
        let names = names.join(", ");
        let message = format!("the API server refused to have {names} stopped: {words}");
        self.say_once(entry, Reason::StopRefused, &message, &message).await;
        if !*else_end {
            return Next::After(REFUSED);
        }
        let message = format!("{names} could not be stopped: the pod is ended");
        let end = Action { effect: Effect::End, reason: Reason::PodEnded, message, on_verdict: true };
        // Not `act`: it would come back here.
        match self.effects.change(pod, &end.effect).await {
            Outcome::Done => {
                self.note_done(entry, &end, Instant::now());
                self.effects.say(pod, end.reason, &end.message, &end.message).await;
                Next::Nothing
            }
            Outcome::MovedOn => Next::After(MOVED_ON),
            Outcome::Unanswered(after) => Next::Failed(after),
            Outcome::Deposed => Next::Nothing,
            Outcome::Refused { .. } => Next::After(REFUSED),
        }
    }

    async fn say_once(&self, entry: &Entry, reason: Reason, key: &str, message: &str) -> Next {
        let what = (reason, key.to_owned());
        if lock(&entry.memory).said.contains(&what) {
            return Next::Nothing;
        }
        let pod = &*entry.pod;
        info!(pod = pod.metadata.name, namespace = pod.metadata.namespace, reason = reason.as_str(), "{message}");
        match self.effects.say(pod, reason, key, message).await {
            // One that may not be said is not said again and again.
            Outcome::Done | Outcome::MovedOn | Outcome::Refused { .. } => {
                lock(&entry.memory).said.insert(what);
                Next::Nothing
            }
            Outcome::Unanswered(after) => Next::Failed(after),
            Outcome::Deposed => Next::Nothing,
        }
    }

    fn note_done(&self, entry: &Entry, action: &Action, begun: Instant) {
        let pod = &*entry.pod;
        lock(&entry.memory).patched = Some(pod.metadata.resource_version.clone());
        if action.effect != Effect::Nudge {
            info!(
                pod = pod.metadata.name,
                namespace = pod.metadata.namespace,
                reason = action.reason.as_str(),
                "{}",
                action.message
            );
        }
        match action.effect {
            Effect::OpenGate => {
                self.settings.facts.send_if_modified(|facts| facts.gate_was_opened(&pod.metadata.namespace));
                if let Some(start) = pod.status.start_time {
                    self.metrics.gate_waited(until(start, (self.settings.now)()));
                }
                // A gate that opens by time or by an opt-out waits for no sidecar, and what was ready before we led is
                // no delay of ours.
                let since = lock(&self.leading_since).map(|since| since.max(entry.seen));
                if let Some(since) = since.filter(|_| action.reason == Reason::GateOpened) {
                    self.metrics.gate_opened_after(since.elapsed());
                }
            }
            Effect::Stop { .. } => self.metrics.stopped_after(begun.elapsed()),
            Effect::Nudge | Effect::End | Effect::TurnClassic { .. } | Effect::Replace | Effect::Say { .. } => {}
        }
    }
}

/// The cache only proposes. A verdict of its own is asked for live before anything is made of it that could not be taken
/// back: a stop, an end, and a gate that would stay shut on a verdict of the attempt before.
fn needs_confirmation(pod: &Pod, verdict: &Verdict, decision: &Decision) -> bool {
    decision.actions.iter().any(|action| action.on_verdict) || (verdict.is_recorded() && holds_gate(pod, decision))
}

fn holds_gate(pod: &Pod, decision: &Decision) -> bool {
    gate::is_shut(pod) && (decision.again_at.is_some() || !decision.actions.is_empty())
}

fn says_the_same(one: &Verdict, other: &Verdict) -> bool {
    match (one, other) {
        (Verdict::Recorded { outcome: one, .. }, Verdict::Recorded { outcome: other, .. }) => one == other,
        _ => one == other,
    }
}

fn until(now: Timestamp, time: Timestamp) -> Duration {
    Duration::try_from(time.duration_since(now).max(SignedDuration::ZERO)).unwrap_or_default()
}

/// Of two reasons to look again, the one that comes first; what failed is not lost.
fn sooner(one: Next, other: Next) -> Next {
    match (one, other) {
        (Next::Nothing, next) | (next, Next::Nothing) => next,
        (Next::After(one), Next::After(other)) => Next::After(one.min(other)),
        // What failed is tried again by then, and what is due is not put off by a growing backoff.
        (Next::Failed(_), Next::After(delay)) | (Next::After(delay), Next::Failed(_)) => Next::After(delay.min(FAILED)),
        (Next::Failed(asked), Next::Failed(_)) => Next::Failed(asked),
    }
}
