//! The controller's decision: a pod, its verdict and the time become actions. It remembers nothing: the same pod at the
//! same time always gives the same answer, so that any controller can go on where another stopped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use super::contract::{self, ENDED_IMAGE, GateTimeout, Reason, Settings, Stopped};
use super::gate;
use super::model::{Container, Phase, Pod};
use super::nop;
use super::sidecars::{self, Role, Sidecar};
use super::tekton;
use super::verdict::{Outcome, Verdict};

/// A shut gate opens that long after the pod's start where nothing else is said and Tekton does not wait itself.
pub const GATE_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);
/// A gate that stays shut is spoken of that long after the pod's start.
pub const HELD_REPORTS: [SignedDuration; 4] = [
    SignedDuration::from_mins(1),
    SignedDuration::from_mins(5),
    SignedDuration::from_mins(15),
    SignedDuration::from_mins(30),
];
/// How long after a verdict a pod is left to Tekton, where Tekton may still write to it: v0.18 to v0.54 turn a conflict
/// with their own update into a failed run.
pub const SETTLE: SignedDuration = SignedDuration::from_secs(10);
/// How long after the last step's end a pod without a verdict is held to be stuck.
pub const STUCK: SignedDuration = SignedDuration::from_secs(10);
/// How long a pod may take to end after its verdict, beyond its sidecars' grace.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(2);
/// Kubernetes' default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// What is known beside the pod.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// What the pod's TaskRun says.
    pub verdict: Verdict,
    /// When a verdict was first seen for this pod, for those that carry no time.
    pub verdict_seen: Option<Timestamp>,
    /// Now.
    pub now: Timestamp,
    /// The pod's namespace is labelled `kickstand.dev/inject: "false"`.
    pub namespace_opted_out: bool,
    /// Kickstand is being removed: every gate is to be opened, nothing else is to be begun.
    pub leaving: bool,
    /// Our nop image, by the name that a swap writes.
    pub nop_image: &'a str,
    /// What Tekton's nop image's name starts with.
    pub tekton_nop_images: &'a [String],
}

/// What to do, and when to look again if nothing happens before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// In this order.
    pub actions: Vec<Action>,
    /// When time alone could change the answer.
    pub again_at: Option<Timestamp>,
}

/// Something to be done to a pod, and how to say that it was done.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// What.
    pub effect: Effect,
    /// The Event's reason.
    pub reason: Reason,
    /// The Event's message, once it is done.
    pub message: String,
    /// It follows from a verdict, which must be confirmed by a live read of the TaskRun first: a cache only proposes.
    pub on_verdict: bool,
}

/// A change to a pod, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Opens the gate.
    OpenGate,
    /// Stops these sidecars, in one patch.
    Stop {
        /// Which, and how.
        orders: Vec<Order>,
        /// If the API server refuses for good: end the pod (its verdict is recorded) rather than leave it running.
        else_end: bool,
    },
    /// Ends the pod by its `activeDeadlineSeconds`: the kubelet kills all containers side by side.
    End,
    /// Only speaks; once for each `key` and pod.
    Say {
        /// Tells one occasion from another.
        key: String,
    },
}

/// One sidecar to be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its index in `spec.containers`.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// The image it runs.
    pub from: String,
    /// How.
    pub how: How,
}

/// The two ways to stop a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Its image becomes nop's, which runs under its own command and exits 0: a killed sidecar does not count, its logs
    /// are lost on the node.
    Nop,
    /// Its image becomes a name that no runtime can parse: nothing is pulled or started, its own exit code stands, its
    /// logs are kept.
    Ended,
}

impl How {
    /// The image that a swap writes.
    #[must_use]
    pub fn image<'a>(self, nop_image: &'a str) -> &'a str {
        match self {
            Self::Nop => nop_image,
            Self::Ended => ENDED_IMAGE,
        }
    }
}

/// When the last step ended, if every step has ended and none will be started again.
#[must_use]
pub fn steps_done_at(pod: &Pod) -> Option<Timestamp> {
    let mut last = None;
    for step in tekton::steps(pod) {
        let ended = pod.status_of(&step.name)?.state.terminated.as_ref()?;
        if sidecars::restarts(pod, step, ended.exit_code) {
            return None;
        }
        // A step that never ran (StartError) may have no time of its own.
        last = last.max(Some(ended.finished_at.unwrap_or(Timestamp::UNIX_EPOCH)));
    }
    last
}

/// The pod has ended.
#[must_use]
pub fn is_terminal(pod: &Pod) -> bool {
    matches!(pod.status.phase, Phase::Succeeded | Phase::Failed)
}

/// Reads a pod from the top: the first thing that fits decides.
#[must_use]
pub fn decide(pod: &Pod, context: &Context<'_>) -> Decision {
    if tekton::eligible(pod).is_err() && !gate::is_gated(pod) {
        return Decision::default();
    }
    if is_terminal(pod) || pod.metadata.deletion_timestamp.is_some() || is_past_deadline(pod, context.now) {
        return Decision::default();
    }
    let (settings, malformed) = Settings::of(pod);
    let mut scene = Scene { pod, context, settings, decision: Decision::default() };
    let opted_out = context.namespace_opted_out || contract::opted_out(pod);
    if !opted_out && !context.leaving {
        for malformed in &malformed {
            scene.say(Reason::BadAnnotation, malformed.key.to_owned(), malformed.to_string());
        }
    }
    if gate::is_shut(pod) {
        scene.shut(opted_out || context.leaving || !scene.settings.gate);
    } else if !opted_out && !context.leaving && scene.settings.stop {
        scene.open();
    }
    scene.decision
}

struct Scene<'a> {
    pod: &'a Pod,
    context: &'a Context<'a>,
    settings: Settings,
    decision: Decision,
}

impl Scene<'_> {
    /// The gate is shut.
    fn shut(&mut self, release_now: bool) {
        if self.context.verdict.is_recorded() {
            // Opening would start a step of a run that is over.
            if let Some(since) = self.settled() {
                let message = format!(
                    "the run is over ({}) before its first step started: the step will not run, the pod is ended",
                    self.outcome_in_words()
                );
                self.when(since, Effect::End, Reason::GateClosed, message, true);
            }
            return;
        }
        if tekton::is_cancelled(self.pod) {
            // Its verdict comes in a moment, and ends it.
            let message = "the run is cancelled: the first step will not start".to_owned();
            return self.say(Reason::GateClosed, "cancelled".to_owned(), message);
        }
        if release_now {
            let message = if self.context.leaving {
                "kickstand is being removed: the first step starts without waiting for its sidecars"
            } else {
                "opted out: the first step starts without waiting for its sidecars"
            };
            return self.act(Effect::OpenGate, Reason::GateOpened, message.to_owned(), false);
        }
        let waits: Vec<Wait> =
            sidecars::awaited(self.pod, &self.settings).map(|sidecar| wait(self.pod, &sidecar)).collect();
        let held: Vec<&str> = waits.iter().filter_map(Wait::held).collect();
        let noted: Vec<&str> = waits.iter().filter_map(Wait::noted).collect();
        if held.is_empty() {
            let (reason, message) = if noted.is_empty() {
                (Reason::GateOpened, "every sidecar is ready: the first step starts".to_owned())
            } else {
                (Reason::GateOpenedUnready, format!("the first step starts although {}", noted.join("; ")))
            };
            return self.act(Effect::OpenGate, reason, message, false);
        }
        // Before the kubelet has seen the pod there is no start to count from.
        let Some(start) = self.pod.status.start_time else { return };
        if let Some(timeout) = gate_timeout(self.pod, self.settings.gate_timeout) {
            if self.is_due(start, timeout) {
                let message = format!(
                    "the first step starts although it was held for {timeout:#} (its limit), and {}",
                    [&held[..], &noted[..]].concat().join("; ")
                );
                return self.act(Effect::OpenGate, Reason::GateOpenedUnready, message, false);
            }
        }
        let now = self.context.now;
        let due = HELD_REPORTS.iter().filter(|after| now.duration_since(start) >= **after).next_back();
        if let Some(after) = due {
            let message = format!("the first step has been held for {after:#}: {}", held.join("; "));
            self.say(Reason::GateHeld, format!("held {after:#}"), message);
        }
        if let Some(next) = HELD_REPORTS.iter().find(|after| now.duration_since(start) < **after) {
            self.look_again_at(start.checked_add(*next).ok());
        }
    }

    /// No gate, or an open one.
    fn open(&mut self) {
        let pod = self.pod;
        let settled = self.settled();
        let done_at = steps_done_at(pod);
        if let Some(since) = settled {
            let stuck = if done_at.is_some() { self.still_ending() } else { self.never_started() };
            if let Some((base, allowance, message)) = stuck {
                let due = base.unwrap_or(since).max(since).checked_add(allowance).ok();
                if due.is_some_and(|due| due <= self.context.now) {
                    return self.act(Effect::End, Reason::PodEnded, message, true);
                }
                self.look_again_at(due);
            }
        }
        let Some(done_at) = done_at else { return };
        if let Some(since) = settled {
            if self.context.now < since {
                return self.look_again_at(Some(since));
            }
            return self.stop(done_at, true);
        }
        if self.context.verdict.is_recorded() {
            return;
        }
        // Stopping before the verdict may turn the pod Failed, and Tekton would blame the run: only where nothing else can
        // end it. Tekton ≥ 1.4 with enable-kubernetes-sidecar waits for native sidecars, which the kubelet ends after the
        // classic ones, which nobody ends. And a pod in which one never started is Pending, which Tekton does not judge.
        let deadlocked = sidecars::native(pod).any(|sidecar| sidecar.is_running());
        if deadlocked || pod.status.phase == Phase::Pending {
            if self.is_due(done_at, STUCK) {
                self.stop(done_at, false);
            }
        }
    }

    /// The steps are done: stops what is left, helpers first.
    fn stop(&mut self, done_at: Timestamp, judged: bool) {
        let pod = self.pod;
        let stopped = contract::stopped(pod);
        let mut candidates = Vec::new();
        let mut helper_left = false;
        for sidecar in sidecars::classic(pod) {
            if self.settings.ignores(sidecar.name()) || sidecar.ends_by_itself() {
                continue;
            }
            let running = sidecar.is_running();
            let never_started = sidecar.never_started() && pod.status.phase == Phase::Pending;
            // Between two starts of a crash loop it is as good as running: its end would never count.
            let restarting = !running && !sidecar.never_started() && sidecar.ended(pod).is_none();
            if !running && !never_started && !restarting {
                continue;
            }
            if self.is_stopped(&sidecar, &stopped) {
                helper_left |= sidecar.role() == Role::Helper;
                continue;
            }
            if let Some(time) = self.settings.finish(sidecar.name()) {
                if !self.is_due(done_at, time) {
                    helper_left |= sidecar.role() == Role::Helper;
                    continue;
                }
            }
            helper_left |= sidecar.role() == Role::Helper;
            candidates.push((sidecar, never_started));
        }
        let role = if helper_left { Role::Helper } else { Role::NetworkProxy };
        let mut orders = Vec::new();
        for (sidecar, never_started) in candidates.into_iter().filter(|(sidecar, _)| sidecar.role() == role) {
            match self.how(&sidecar, never_started, judged) {
                Some(how) => orders.push(Order {
                    index: sidecar.index,
                    name: sidecar.name().to_owned(),
                    from: sidecar.container.image.clone(),
                    how,
                }),
                None if judged => {
                    let message = format!(
                        "the steps are done, and {} would be started again whatever its image: the pod is ended",
                        sidecar.name()
                    );
                    return self.act(Effect::End, Reason::PodEnded, message, true);
                }
                None => {}
            }
        }
        if orders.is_empty() {
            return;
        }
        let mut message = "the steps are done: stopped ".to_owned();
        for (at, order) in orders.iter().enumerate() {
            let how = match order.how {
                How::Nop => "by nop",
                How::Ended => "logs kept",
            };
            let _ = write!(message, "{}{} ({how})", if at == 0 { "" } else { ", " }, order.name);
        }
        self.act(Effect::Stop { orders, else_end: judged }, Reason::SidecarsStopped, message, judged);
    }

    /// The way to stop a sidecar; `None` if neither way would end it.
    fn how(&self, sidecar: &Sidecar<'_>, never_started: bool, judged: bool) -> Option<How> {
        let container = sidecar.container;
        let covered = nop::covers(container);
        if never_started {
            // Nothing runs and nothing is to be kept. Before a verdict, one that nop cannot stand in for would end in
            // error and fail the run.
            return (covered || judged).then_some(How::Nop);
        }
        if !sidecars::never_restarts(self.pod, container) {
            // A runtime that cannot parse the image would be asked again and again.
            return (covered && !self.settings.keep_logs).then_some(How::Nop);
        }
        if !judged {
            return Some(if covered { How::Nop } else { How::Ended });
        }
        let keep = self.settings.keep_logs || self.is_red() || sidecar.exits_zero_on_term();
        Some(if keep || !covered { How::Ended } else { How::Nop })
    }

    /// The run failed, so the pod's phase has nothing to lose, and its logs are wanted.
    fn is_red(&self) -> bool {
        let failed =
            matches!(self.context.verdict, Verdict::Recorded { outcome: Outcome::Failed | Outcome::Superseded, .. });
        failed
            || tekton::steps(self.pod).any(|step| {
                self.pod
                    .status_of(&step.name)
                    .and_then(|status| status.state.terminated.as_ref())
                    .is_some_and(|ended| ended.exit_code != 0)
            })
    }

    fn is_stopped(&self, sidecar: &Sidecar<'_>, stopped: &BTreeMap<String, Stopped>) -> bool {
        let image = sidecar.container.image.as_str();
        image == self.context.nop_image
            || image == ENDED_IMAGE
            || self.context.tekton_nop_images.iter().any(|start| image.starts_with(start.as_str()))
            || stopped.get(sidecar.name()).is_some_and(|stopped| stopped.image != image)
    }

    /// Steps done and judged, and a sidecar that was stopped has not ended: since when, how long it may take, and what to
    /// say.
    fn still_ending(&self) -> Option<(Option<Timestamp>, SignedDuration, String)> {
        let stopped = contract::stopped(self.pod);
        let late: Vec<Sidecar<'_>> = sidecars::classic(self.pod)
            .filter(|sidecar| !self.settings.ignores(sidecar.name()))
            .filter(|sidecar| self.is_stopped(sidecar, &stopped) && sidecar.ended(self.pod).is_none())
            .collect();
        if late.is_empty() {
            return None;
        }
        let since = late.iter().filter_map(|sidecar| stopped.get(sidecar.name()).map(|stopped| stopped.at)).max();
        // The containers of one patch are killed one after another, each with its grace.
        let grace = self.pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS).clamp(0, 86_400);
        let graces = SignedDuration::from_secs(grace.saturating_mul(i64::try_from(late.len()).unwrap_or(i64::MAX)));
        let names: Vec<&str> = late.iter().map(Sidecar::name).collect();
        let message = format!("{} did not end after being stopped: the pod is ended", names.join(", "));
        Some((since, PATIENCE.saturating_add(graces), message))
    }

    /// Judged, and a step has not even started (cancelled and kept; its image cannot be pulled).
    fn never_started(&self) -> Option<(Option<Timestamp>, SignedDuration, String)> {
        let step = tekton::steps(self.pod).find(|step| {
            self.pod.status_of(&step.name).is_none_or(|status| {
                status.state.running.is_none()
                    && status.state.terminated.is_none()
                    && status.last_state.terminated.is_none()
            })
        })?;
        let message = format!("the run is over and {} never started: the pod is ended", step.name);
        Some((None, PATIENCE, message))
    }

    /// From when on a recorded verdict may be acted on; `None` without one.
    fn settled(&self) -> Option<Timestamp> {
        let Verdict::Recorded { at, .. } = self.context.verdict else { return None };
        let since = at.or(self.context.verdict_seen).unwrap_or(self.context.now);
        // A verdict without a time is one by absence, and the first sight of it may be a watch's lag.
        if tekton::names_its_owner(self.pod) && at.is_some() { Some(since) } else { since.checked_add(SETTLE).ok() }
    }

    fn outcome_in_words(&self) -> &'static str {
        match self.context.verdict {
            Verdict::Recorded { outcome: Outcome::Succeeded, .. } => "succeeded",
            Verdict::Recorded { outcome: Outcome::Failed, .. } => "failed, timed out or cancelled",
            Verdict::Recorded { outcome: Outcome::Superseded, .. } => "tried again in another pod",
            Verdict::Recorded { outcome: Outcome::Gone, .. } => "deleted",
            Verdict::None => "not judged",
        }
    }

    fn is_due(&mut self, base: Timestamp, after: SignedDuration) -> bool {
        let due = base.checked_add(after).ok();
        if due.is_some_and(|due| due <= self.context.now) {
            return true;
        }
        self.look_again_at(due);
        false
    }

    /// Acts if it is time, else looks again then.
    fn when(&mut self, time: Timestamp, effect: Effect, reason: Reason, message: String, on_verdict: bool) {
        if time <= self.context.now {
            self.act(effect, reason, message, on_verdict);
        } else {
            self.look_again_at(Some(time));
        }
    }

    fn act(&mut self, effect: Effect, reason: Reason, message: String, on_verdict: bool) {
        self.decision.actions.push(Action { effect, reason, message, on_verdict });
    }

    fn say(&mut self, reason: Reason, key: String, message: String) {
        self.act(Effect::Say { key }, reason, message, false);
    }

    fn look_again_at(&mut self, time: Option<Timestamp>) {
        self.decision.again_at = match (self.decision.again_at, time) {
            (Some(old), Some(new)) => Some(old.min(new)),
            (old, new) => old.or(new),
        };
    }
}

/// What an awaited sidecar means for the gate.
enum Wait {
    Ready,
    /// It counts as ready, but somebody should know why.
    Noted(String),
    /// The gate waits for it.
    Held(String),
}

impl Wait {
    fn held(&self) -> Option<&str> {
        match self {
            Self::Held(why) => Some(why),
            Self::Ready | Self::Noted(_) => None,
        }
    }

    fn noted(&self) -> Option<&str> {
        match self {
            Self::Noted(why) => Some(why),
            Self::Ready | Self::Held(_) => None,
        }
    }
}

fn wait(pod: &Pod, sidecar: &Sidecar<'_>) -> Wait {
    let name = sidecar.name();
    let Some(status) = sidecar.status else {
        return Wait::Held(format!("{name} has no status yet"));
    };
    if status.ready && status.state.running.is_some() {
        return Wait::Ready;
    }
    let ended = if sidecar.native { None } else { sidecar.ended(pod) };
    match ended {
        Some(0) if sidecar.role() == Role::NetworkProxy || sidecar.container.readiness_probe.is_some() => {
            return Wait::Noted(format!("{name} ended (exit code 0) without being ready"));
        }
        Some(0) => return Wait::Ready,
        // Tekton counts it so too, and holding would only burn the run's timeout.
        Some(code) => return Wait::Noted(format!("{name} ended with exit code {code} and will not be started again")),
        None => {}
    }
    if status.restart_count >= 2 {
        let code = [&status.state, &status.last_state].into_iter().find_map(|state| state.terminated.as_ref());
        let code = code.map_or_else(String::new, |ended| format!(", last with exit code {}", ended.exit_code));
        return Wait::Noted(format!(
            "{name} was started {} times without becoming ready{code}",
            status.restart_count + 1
        ));
    }
    Wait::Held(format!("{name} {}", why_not_ready(sidecar.container, status)))
}

/// What a person would look for: the probe, the pull, the crash.
fn why_not_ready(container: &Container, status: &super::model::ContainerStatus) -> String {
    if let Some(waiting) = &status.state.waiting {
        let reason = if waiting.reason.is_empty() { "no reason given" } else { &waiting.reason };
        let detail: String = waiting.message.chars().take(200).collect();
        return if detail.is_empty() {
            format!("is waiting ({reason})")
        } else {
            format!("is waiting ({reason}: {detail})")
        };
    }
    if let Some(ended) = &status.state.terminated {
        return format!("ended with exit code {} and is to be started again", ended.exit_code);
    }
    if status.started == Some(false) && container.startup_probe.is_some() {
        return "runs, but its startupProbe has not succeeded yet".to_owned();
    }
    match &container.readiness_probe {
        Some(probe) => format!("runs, but its readinessProbe ({probe}) has not succeeded yet"),
        None => "runs, but is not ready yet".to_owned(),
    }
}

/// When a shut gate opens by time alone, counted from the pod's start.
#[must_use]
pub fn gate_timeout(pod: &Pod, set: GateTimeout) -> Option<SignedDuration> {
    match set {
        GateTimeout::Never => None,
        GateTimeout::After(time) => Some(time),
        // Tekton would hold the step as long.
        GateTimeout::Default if gate::tekton_waits(pod) => None,
        GateTimeout::Default => {
            let third = pod.spec.active_deadline_seconds.map(|seconds| SignedDuration::from_secs(seconds / 3));
            Some(third.map_or(GATE_TIMEOUT, |third| third.min(GATE_TIMEOUT)))
        }
    }
}

fn is_past_deadline(pod: &Pod, now: Timestamp) -> bool {
    let deadline = pod.status.start_time.zip(pod.spec.active_deadline_seconds);
    deadline.is_some_and(|(start, seconds)| now.duration_since(start) >= SignedDuration::from_secs(seconds))
}
