//! No gate, or an open one: when the steps are done, and how what is left comes to its end.

use jiff::{SignedDuration, Timestamp};

use super::{Effect, How, Order, Scene};
use crate::pod::contract::{ENDED_IMAGE, Reason};
use crate::pod::gate;
use crate::pod::known::Role;
use crate::pod::model::{Phase, Pod};
use crate::pod::nop;
use crate::pod::sidecars::{self, Sidecar};
use crate::pod::tekton;
use crate::pod::verdict::{Outcome, Verdict};

/// How long after the last step's end a pod without a verdict is held to be stuck.
pub const STUCK: SignedDuration = SignedDuration::from_secs(10);
/// How long a pod may take to end after its verdict, beyond its sidecars' grace. And how long a verdict may take where
/// acting without one could spoil it.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(2);
/// Kubernetes' default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;
/// When the last step ended, if every step has ended and none will be started again.
#[must_use]
pub fn steps_done_at(pod: &Pod) -> Option<Timestamp> {
    let mut last = None;
    for step in tekton::steps(pod) {
        let ended = pod.status_of(&step.name)?.state.terminated.as_ref()?;
        if sidecars::restarts(pod, step, ended.exit_code) {
            return None;
        }
        // A step that never ran may have no time of its own, or one of 1970; it did not end before the pod began.
        let at = ended.finished_at.max(pod.status.start_time);
        last = last.max(Some(at.unwrap_or(Timestamp::UNIX_EPOCH)));
    }
    last
}

/// A pod that is judged and does not end.
struct Stuck {
    /// Since when, if later than the verdict.
    since: Option<Timestamp>,
    /// How long it may take.
    allowance: SignedDuration,
    /// What to say.
    message: String,
}

impl<'a> Scene<'a> {
    pub(super) fn gate_is_open(&mut self) {
        let settled = self.settled();
        let done_at = steps_done_at(self.pod);
        if let Some(since) = settled {
            if since > self.context.now {
                return self.look_again_at(since);
            }
            if self.end_if_stuck(since, done_at) {
                return;
            }
        }
        let Some(done_at) = done_at else { return };
        let judged = settled.is_some();
        match self.pod.status.phase {
            // Stopping before the verdict may turn the pod Failed, and Tekton would blame the run: only where nothing else
            // can end it. Tekton ≥ 1.4 with enable-kubernetes-sidecar waits for native sidecars, which the kubelet ends
            // after the classic ones, which nobody ends.
            Phase::Running if judged || self.is_deadlocked() => {
                self.stop_running(done_at, judged);
            }
            // Tekton does not judge a pod that is Pending, and one container that never started keeps it so.
            Phase::Pending => self.replace_unstarted(done_at, judged),
            _ => {}
        }
    }

    /// Tekton waits for a native sidecar. An old one never does: it is merely slow. And one that has not recorded the end
    /// of the steps is away, or busy elsewhere: its verdict will come, and is not to be spoilt.
    fn is_deadlocked(&self) -> bool {
        self.context.verdict == Verdict::Withheld
            && tekton::names_its_owner(self.pod)
            && sidecars::native(self.pod).any(|sidecar| sidecar.is_running())
    }

    /// Stops what runs, or is between two starts of a crash loop: helpers first.
    fn stop_running(&mut self, done_at: Timestamp, judged: bool) {
        let mut helper_runs = false;
        let mut left = Vec::new();
        for sidecar in self.stoppable() {
            let is_helper = sidecar.role(self.context.known) == Role::Helper;
            if self.is_stopped(&sidecar) && (judged || !self.was_undone(&sidecar)) {
                helper_runs |= is_helper && sidecar.is_running();
            } else if is_alive(self.pod, &sidecar) {
                helper_runs |= is_helper;
                left.push(sidecar);
            }
        }
        let role = if helper_runs { Role::Helper } else { Role::NetworkProxy };
        left.retain(|sidecar| sidecar.role(self.context.known) == role);

        let mut orders = Vec::new();
        for sidecar in left {
            if self.has_time_to_finish(&sidecar, done_at) {
                continue;
            }
            let how = self.how(&sidecar, judged);
            // One that may well end in error would fail the run, if Tekton is merely slow: it waits longer.
            let safe = how == Some(How::Nop) || sidecar.exits_zero_on_term(self.context.known);
            if !judged && !self.is_due(done_at, if safe { STUCK } else { PATIENCE }) {
                continue;
            }
            match how {
                Some(how) => orders.push(order(&sidecar, how)),
                None if judged && self.end_unstoppable(&sidecar, done_at) => return,
                None => {}
            }
        }
        let occasion =
            if judged { "the steps are done" } else { "the steps are done, and nothing else would end the pod" };
        // Without a verdict, it follows from one that is withheld.
        self.order(orders, &format!("{occasion}: stopped"), done_at, judged, true);
    }

    /// Puts nop in the place of what never started, so that the pod is not Pending any more.
    fn replace_unstarted(&mut self, done_at: Timestamp, judged: bool) {
        let mut orders = Vec::new();
        for sidecar in self.stoppable() {
            if !sidecar.never_started() || self.is_stopped(&sidecar) || self.has_time_to_finish(&sidecar, done_at) {
                continue;
            }
            let covered = self.nop_ends(&sidecar);
            if judged && !covered && !sidecars::never_restarts(self.pod, sidecar.container) {
                if self.end_unstoppable(&sidecar, done_at) {
                    return;
                }
                continue;
            }
            // Before a verdict, one that nop cannot stand in for would end in error and fail the run; and one that is still
            // being pulled will most likely start, after which Tekton judges.
            if !judged && (!covered || !self.is_due(done_at, if has_failed(&sidecar) { STUCK } else { PATIENCE })) {
                continue;
            }
            orders.push(order(&sidecar, How::Nop));
        }
        self.order(orders, "the steps are done: replaced what never started:", done_at, judged, judged);
    }

    fn order(&mut self, orders: Vec<Order>, occasion: &str, done_at: Timestamp, judged: bool, on_verdict: bool) {
        if orders.is_empty() {
            return;
        }
        let names: Vec<String> = orders
            .iter()
            .map(|order| match order.how {
                How::Nop => format!("{} (by nop)", order.name),
                How::Ended => format!("{} (logs kept)", order.name),
            })
            .collect();
        let message = format!("{occasion} {}", names.join(", "));
        let else_end = judged && !self.is_finishing(done_at);
        self.act(Effect::Stop { orders, else_end }, Reason::SidecarsStopped, &message, on_verdict);
    }

    /// The way to stop a running sidecar; `None` if neither way would end it.
    fn how(&self, sidecar: &Sidecar<'_>, judged: bool) -> Option<How> {
        let by_nop = self.nop_ends(sidecar).then_some(How::Nop);
        // Elsewhere the kubelet would try the image that no runtime can parse again and again.
        let by_name = sidecars::never_restarts(self.pod, sidecar.container).then_some(How::Ended);
        if !judged {
            return by_nop.or(by_name);
        }
        if self.settings.keep_logs {
            return by_name;
        }
        if self.is_red() || sidecar.exits_zero_on_term(self.context.known) {
            by_name.or(by_nop)
        } else {
            by_nop.or(by_name)
        }
    }

    /// In its place, nop would start, exit 0 and not be started again.
    fn nop_ends(&self, sidecar: &Sidecar<'_>) -> bool {
        nop::covers(sidecar.container) && !sidecars::restarts(self.pod, sidecar.container, 0)
    }

    /// The run failed, so the pod's phase has nothing to lose, and its logs are wanted.
    fn is_red(&self) -> bool {
        matches!(self.context.verdict, Verdict::Recorded { outcome: Outcome::Failed | Outcome::Superseded, .. })
            || tekton::steps(self.pod).any(|step| {
                let status = self.pod.status_of(&step.name);
                status.and_then(|status| status.state.terminated.as_ref()).is_some_and(|ended| ended.exit_code != 0)
            })
    }

    /// The sidecars that we may stop.
    fn stoppable(&self) -> Vec<Sidecar<'a>> {
        sidecars::classic(self.pod)
            .filter(|sidecar| !sidecar.ends_by_itself(self.context.known) && !self.settings.ignores(sidecar.name()))
            .collect()
    }

    /// Somebody has stopped it already.
    fn is_stopped(&self, sidecar: &Sidecar<'_>) -> bool {
        self.runs_a_nop(sidecar)
            // Once is enough, whatever it runs by now: an older nop image of ours, or one of Tekton's under a name that we
            // were not told. To stop it again would be to fight over it.
            || self.stopped.contains_key(sidecar.name())
    }

    /// Its image is one that somebody stops sidecars by.
    fn runs_a_nop(&self, sidecar: &Sidecar<'_>) -> bool {
        let image = sidecar.container.image.as_str();
        let tekton_nops = self.context.tekton_nop_images.iter().filter(|start| !start.is_empty());
        image == self.context.nop_image
            || image == ENDED_IMAGE
            || tekton_nops.into_iter().any(|start| image.starts_with(start.as_str()))
    }

    /// It was stopped a while ago, and runs what it ran before, or something else: somebody put that there. After a verdict
    /// its pod is ended for that; before, nothing else would come of it.
    fn was_undone(&mut self, sidecar: &Sidecar<'_>) -> bool {
        let at = self.stopped.get(sidecar.name()).map(|stopped| stopped.at);
        !self.runs_a_nop(sidecar) && at.is_some_and(|at| self.is_due(at, PATIENCE))
    }

    /// It may run on for a while, to end by itself.
    fn has_time_to_finish(&mut self, sidecar: &Sidecar<'_>, done_at: Timestamp) -> bool {
        self.settings.finish(sidecar.name()).is_some_and(|time| !self.is_due(done_at, time))
    }

    /// Some sidecar has time to finish and needs it: the pod must not be ended as a whole.
    fn is_finishing(&mut self, done_at: Timestamp) -> bool {
        let pod = self.pod;
        sidecars::classic(pod).filter(|sidecar| is_alive(pod, sidecar)).any(|sidecar| {
            !self.settings.ignores(sidecar.name())
                && !self.is_stopped(&sidecar)
                && self.has_time_to_finish(&sidecar, done_at)
        })
    }

    /// Neither way would end this one: ends the pod, if nobody in it has time to finish.
    fn end_unstoppable(&mut self, sidecar: &Sidecar<'_>, done_at: Timestamp) -> bool {
        if self.is_finishing(done_at) {
            return false;
        }
        let why =
            if self.settings.keep_logs { "cannot be stopped with its logs kept" } else { "would be started again" };
        let message = format!("the steps are done, and {} {why}: the pod is ended", sidecar.name());
        self.act(Effect::End, Reason::PodEnded, &message, true);
        true
    }

    fn end_if_stuck(&mut self, verdict: Timestamp, done_at: Option<Timestamp>) -> bool {
        let stuck = if done_at.is_some() { self.still_ending() } else { self.never_started() };
        let Some(Stuck { since, allowance, message }) = stuck else { return false };
        if !self.is_due(since.map_or(verdict, |since| since.max(verdict)), allowance) {
            return false;
        }
        if done_at.is_some_and(|done_at| self.is_finishing(done_at)) {
            return false;
        }
        self.act(Effect::End, Reason::PodEnded, &message, true);
        true
    }

    /// Judged, the steps done, and a sidecar that was stopped has not ended.
    fn still_ending(&self) -> Option<Stuck> {
        let late: Vec<Sidecar<'_>> = sidecars::classic(self.pod)
            .filter(|sidecar| !self.settings.ignores(sidecar.name()))
            .filter(|sidecar| self.is_stopped(sidecar) && sidecar.ended(self.pod).is_none())
            .collect();
        if late.is_empty() {
            return None;
        }
        let since = late.iter().filter_map(|sidecar| self.stopped.get(sidecar.name())).map(|stopped| stopped.at).max();
        // The containers of one patch are killed one after another, each with its grace.
        let grace = self.pod.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS).clamp(0, 86_400);
        let graces = SignedDuration::from_secs(grace.saturating_mul(i64::try_from(late.len()).unwrap_or(i64::MAX)));
        let names: Vec<&str> = late.iter().map(Sidecar::name).collect();
        let message = format!("{} did not end after being stopped: the pod is ended", names.join(", "));
        Some(Stuck { since, allowance: PATIENCE.saturating_add(graces), message })
    }

    /// Judged, and a step has not even started, nor ever will.
    fn never_started(&self) -> Option<Stuck> {
        let has_not_run = tekton::steps(self.pod).find(|step| {
            self.pod.status_of(&step.name).is_none_or(|status| {
                status.state.running.is_none()
                    && status.state.terminated.is_none()
                    && status.last_state.terminated.is_none()
            })
        });
        let message = if let Some(step) = has_not_run {
            format!("the run is over and {} never started: the pod is ended", step.name)
        } else if self.waits_for_tekton() {
            // Cancelled and kept: its container runs, but Tekton gives no signal to a run that is over.
            "the run is over and its first step was never let go by Tekton: the pod is ended".to_owned()
        } else {
            return None;
        };
        Some(Stuck { since: None, allowance: PATIENCE, message })
    }

    /// The first step waits for Tekton's own signal.
    fn waits_for_tekton(&self) -> bool {
        let first = tekton::first_step(self.pod).map(|at| &self.pod.spec.containers[at]);
        gate::tekton_waits(self.pod)
            && !tekton::is_ready(self.pod)
            && first.and_then(|step| self.pod.status_of(&step.name)).is_some_and(|step| step.state.running.is_some())
    }
}

/// It runs, or will run again: between two starts of a crash loop it is as good as running, since its end never counts.
fn is_alive(pod: &Pod, sidecar: &Sidecar<'_>) -> bool {
    sidecar.is_running() || (!sidecar.never_started() && sidecar.ended(pod).is_none())
}

/// It waits for something else than its turn.
fn has_failed(sidecar: &Sidecar<'_>) -> bool {
    let waiting = sidecar.status.and_then(|status| status.state.waiting.as_ref());
    waiting.is_some_and(|waiting| !matches!(waiting.reason.as_str(), "" | "ContainerCreating" | "PodInitializing"))
}

fn order(sidecar: &Sidecar<'_>, how: How) -> Order {
    let container = sidecar.container;
    Order { index: sidecar.index, name: container.name.clone(), from: container.image.clone(), how }
}
