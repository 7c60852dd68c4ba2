//! A native sidecar that cannot be started at all: its command is not in its image. A classic one would have ended, which
//! counts as ready, and the run would go on without it. A native one holds every step for ever, and no field that may be
//! changed would help. But a pod of which no step has started can be made anew: Tekton does so when it is gone (seen on
//! 1.15), and the webhook, which is told of the TaskRun first, leaves that one's sidecars classic.

use jiff::SignedDuration;

use super::hold::RESTARTS;
use super::{Effect, Scene};
use crate::pod::contract::{Reason, STRATEGY};
use crate::pod::model::{ContainerStatus, Phase, Pod};
use crate::pod::sidecars;
use crate::pod::tekton;

/// From then on every replica of the webhook knows: the Lease is written within a second, and read every three.
pub const TOLD_AFTER: SignedDuration = SignedDuration::from_secs(8);
/// The runtime's words for a process that it could not make: containerd's, Docker's.
pub const START_ERRORS: [&str; 2] = ["StartError", "ContainerCannotRun"];

impl Scene<'_> {
    /// Such a sidecar holds the pod, whatever the gate does.
    pub(super) fn cannot_start(&mut self) -> bool {
        let Some((name, code)) = unstartable(self.pod) else { return false };
        let Some(run) = tekton::run_uid(self.pod) else { return false };
        let why = format!("{name} cannot be started (exit code {code})");
        match self.context.turned_classic {
            None => {
                let effect = Effect::TurnClassic { run: run.to_owned() };
                self.act(
                    effect,
                    Reason::PodReplaced,
                    &format!("{why}: its TaskRun's next pod is to be classic"),
                    false,
                );
            }
            Some(turned) if turned.pod == self.pod.metadata.uid => {
                if self.is_due(turned.since, TOLD_AFTER) {
                    let message = format!(
                        "{why}, and as a native sidecar it would hold every step: the pod is deleted before a step has \
                         started, so that Tekton makes it anew, with classic sidecars"
                    );
                    self.act(Effect::Replace, Reason::PodReplaced, &message, false);
                }
            }
            Some(_) => {
                let message = format!(
                    "{why}, and as a native sidecar it holds every step, in a second pod, too. Mend its command, or annotate \
                     the TaskRun {STRATEGY}: classic"
                );
                self.say(Reason::GateHeld, "cannot start".to_owned(), &message);
            }
        }
        true
    }
}

/// The native sidecar that was declared by the Task and whose process could never be made, and the code that the runtime
/// gave for it.
fn unstartable(pod: &Pod) -> Option<(&str, i32)> {
    // An older Tekton takes the loss of a pod for the failure of its run.
    if pod.status.phase != Phase::Pending || !tekton::names_its_owner(pod) || a_container_has_started(pod) {
        return None;
    }
    sidecars::native(pod).find_map(|sidecar| {
        let declared = sidecar.name().starts_with("sidecar-") && sidecar.container.startup_probe.is_none();
        let status = sidecar.status.filter(|status| declared && status.restart_count >= RESTARTS)?;
        start_error(status).map(|code| (sidecar.container.name.as_str(), code))
    })
}

/// None of them does before the init containers let it.
fn a_container_has_started(pod: &Pod) -> bool {
    let statuses = &pod.status.container_statuses;
    statuses.is_empty() || statuses.iter().any(|status| status.state.waiting.is_none() || status.restart_count > 0)
}

/// The code that the runtime gave for it.
fn start_error(status: &ContainerStatus) -> Option<i32> {
    let ended = [&status.state, &status.last_state].into_iter().find_map(|state| state.terminated.as_ref())?;
    let never_ran = status.state.running.is_none() && START_ERRORS.contains(&&*ended.reason);
    never_ran.then_some(ended.exit_code)
}
