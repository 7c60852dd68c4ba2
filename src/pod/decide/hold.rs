//! The gate is shut: whom it waits for, and when it opens all the same.

use jiff::{SignedDuration, Timestamp};

use super::{Effect, Scene, steps_done_at};
use crate::pod::contract::{GateTimeout, NUDGED, READY, Reason};
use crate::pod::gate;
use crate::pod::known::{Known, Role};
use crate::pod::model::{Container, ContainerStatus, Pod};
use crate::pod::sidecars::{self, Sidecar};
use crate::pod::tekton;
use crate::pod::verdict::{Outcome, Verdict};

/// A shut gate opens that long after the pod's start where nothing else is said and Tekton does not wait itself.
pub const GATE_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);
/// A gate that stays shut is spoken of that long after the pod's start.
pub const HELD_REPORTS: [SignedDuration; 4] = [
    SignedDuration::from_mins(1),
    SignedDuration::from_mins(5),
    SignedDuration::from_mins(15),
    SignedDuration::from_mins(30),
];
/// The kubelet is made to look at the pod once more this long after its gate opened. Its volume manager works on a list
/// of pods that it took a moment before: an update that arrives in between is taken for done, and the file in the step
/// stays as it was until the kubelet comes by again, 60 to 90 s later (seen on Kubernetes 1.37, about once in a hundred
/// gates).
pub const NUDGE_AFTER: SignedDuration = SignedDuration::from_secs(1);
/// From then on the kubelet has come by on its own.
const NUDGE_UNTIL: SignedDuration = SignedDuration::from_secs(90);
/// A sidecar that was started again that often and is not ready has had its chance.
pub(super) const RESTARTS: i32 = 2;

impl Scene<'_> {
    /// The gate is open, or there never was one.
    pub(super) fn nudge(&mut self) {
        // An older Tekton would take our change for a conflict with its own, and fail the run.
        if !gate::is_gated(self.pod) || !tekton::names_its_owner(self.pod) || self.pod.annotation(NUDGED).is_some() {
            return;
        }
        let Some(opened) = self.pod.annotation(READY).and_then(|time| time.parse::<Timestamp>().ok()) else { return };
        let is_past = self.context.now.duration_since(opened) >= NUDGE_UNTIL;
        if is_past || steps_done_at(self.pod).is_some() || !self.is_due(opened, NUDGE_AFTER) {
            return;
        }
        self.act(Effect::Nudge, Reason::GateOpened, "the kubelet is to look at the open gate once more", false);
    }

    pub(super) fn gate_is_shut(&mut self, release: bool) {
        if let Some(since) = self.settled() {
            // Opening would start a step of a run that is over.
            if since > self.context.now {
                return self.look_again_at(since);
            }
            let message = format!(
                "the run is over ({}) before its first step started: the step will not run, the pod is ended",
                outcome_in_words(&self.context.verdict)
            );
            return self.act(Effect::End, Reason::GateClosed, &message, true);
        }
        if tekton::is_cancelled(self.pod) {
            // Its verdict comes in a moment, and ends it.
            let message = "the run is cancelled: the first step will not start";
            return self.say(Reason::GateClosed, "cancelled".to_owned(), message);
        }
        if release {
            let message = if self.context.leaving {
                "released by `kickstand release`: the first step starts without waiting for its sidecars"
            } else {
                "opted out: the first step starts without waiting for its sidecars"
            };
            return self.act(Effect::OpenGate, Reason::GateOpened, message, false);
        }
        if self.cannot_start() {
            return;
        }
        let (mut held, mut noted) = (Vec::new(), Vec::new());
        for sidecar in sidecars::awaited(self.pod, &self.settings) {
            match wait(self.pod, &sidecar, self.context.known) {
                Wait::Ready => {}
                Wait::Noted(why) => noted.push(why),
                Wait::Held(why) => held.push(why),
            }
        }
        if held.is_empty() {
            let (reason, message) = if noted.is_empty() {
                (Reason::GateOpened, "every sidecar is ready: the first step starts".to_owned())
            } else {
                (Reason::GateOpenedUnready, format!("the first step starts although {}", noted.join("; ")))
            };
            return self.act(Effect::OpenGate, reason, &message, false);
        }
        self.keep_shut(&held, &noted);
    }

    /// Somebody is not ready: opens if the time is over, else says so now and then.
    fn keep_shut(&mut self, held: &[String], noted: &[String]) {
        // Before the kubelet has seen the pod there is no start to count from.
        let Some(start) = self.pod.status.start_time else { return };
        if let Some(timeout) = gate_timeout(self.pod, self.settings.gate_timeout)
            && self.is_due(start, timeout)
        {
            let why = [held, noted].concat().join("; ");
            let message = format!("the first step starts although it was held for {timeout:#} (its limit), and {why}");
            return self.act(Effect::OpenGate, Reason::GateOpenedUnready, &message, false);
        }
        let elapsed = self.context.now.duration_since(start);
        let (due, ahead) = HELD_REPORTS.split_at(HELD_REPORTS.partition_point(|after| *after <= elapsed));
        if let Some(after) = due.last() {
            let message = format!("the first step has been held for {after:#}: {}", held.join("; "));
            self.say(Reason::GateHeld, format!("held {after:#}"), &message);
        }
        if let Some(next) = ahead.first() {
            self.is_due(start, *next);
        }
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

fn wait(pod: &Pod, sidecar: &Sidecar<'_>, known: &Known) -> Wait {
    let name = sidecar.name();
    let Some(status) = sidecar.status else {
        return Wait::Held(format!("{name} has no status yet"));
    };
    if status.ready && status.state.running.is_some() {
        return Wait::Ready;
    }
    match sidecar.ended(pod) {
        // Whether it was ready before it ended cannot be told any more: the kubelet says only that it is not.
        Some(0) if sidecar.role(known) == Role::NetworkProxy || sidecar.container.readiness_probe.is_some() => {
            return Wait::Noted(format!("{name} has already ended (exit code 0)"));
        }
        Some(0) => return Wait::Ready,
        // Tekton counts it so too, and holding would only burn the run's timeout.
        Some(code) => return Wait::Noted(format!("{name} ended with exit code {code} and will not be started again")),
        None => {}
    }
    if status.restart_count >= RESTARTS {
        let ended = [&status.state, &status.last_state].into_iter().find_map(|state| state.terminated.as_ref());
        let code = ended.map_or_else(String::new, |ended| format!(" (it ended with exit code {})", ended.exit_code));
        let restarts = status.restart_count;
        return Wait::Noted(format!("{name} was restarted {restarts} times and is not ready{code}"));
    }
    Wait::Held(format!("{name} {}", why_not_ready(sidecar.container, status)))
}

/// What a person would look for: the probe, the pull, the crash.
fn why_not_ready(container: &Container, status: &ContainerStatus) -> String {
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
    if status.state.running.is_none() {
        return "is waiting".to_owned();
    }
    if status.started == Some(false) && container.startup_probe.is_some() {
        return "runs, but its startupProbe has not succeeded yet".to_owned();
    }
    match &container.readiness_probe {
        Some(probe) => format!("runs, but its readinessProbe ({probe}) has not succeeded yet"),
        None => "runs, but is not ready yet".to_owned(),
    }
}

fn outcome_in_words(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Recorded { outcome: Outcome::Succeeded, .. } => "succeeded",
        Verdict::Recorded { outcome: Outcome::Failed, .. } => "failed, timed out or cancelled",
        Verdict::Recorded { outcome: Outcome::Superseded, .. } => "tried again in another pod",
        Verdict::Recorded { outcome: Outcome::Gone, .. } => "deleted",
        Verdict::None | Verdict::Withheld => "not judged",
    }
}

/// When a shut gate opens by time alone, counted from the pod's start.
#[must_use]
pub fn gate_timeout(pod: &Pod, set: GateTimeout) -> Option<SignedDuration> {
    match set {
        GateTimeout::Never => None,
        GateTimeout::After(time) => Some(time),
        // Tekton would hold the step as long.
        GateTimeout::Default if gate::tekton_waits(pod) && !tekton::is_ready(pod) => None,
        GateTimeout::Default => {
            let third = pod.spec.active_deadline_seconds.map(|seconds| SignedDuration::from_secs(seconds / 3));
            Some(third.map_or(GATE_TIMEOUT, |third| third.min(GATE_TIMEOUT)))
        }
    }
}
