//! The controller's decision: a pod, its verdict and the time become actions. It remembers nothing: the same pod at the
//! same time always gives the same answer, so that any controller can go on where another stopped.
//!
//! [`decide`] reads the first rows of the table; `hold` has those of a shut gate, `unstartable` that of a sidecar that
//! holds a pod for ever, `stop` those of the steps' end.

mod hold;
mod stop;
#[cfg(test)]
pub(in crate::pod) mod tests;
mod unstartable;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

pub use self::hold::{GATE_TIMEOUT, HELD_REPORTS, NUDGE_AFTER, gate_timeout};
pub use self::stop::{PATIENCE, STUCK, steps_done_at};
pub use self::unstartable::{START_ERRORS, TOLD_AFTER};
use super::contract::{self, ENDED_IMAGE, Reason, Settings, Stopped};
use super::facts::TurnedClassic;
use super::gate;
use super::known::Known;
use super::model::{Phase, Pod};
use super::tekton;
use super::verdict::Verdict;

/// How long after a verdict a pod is left to Tekton, where Tekton may still write to it: v0.18 to v0.54 turn a conflict
/// with their own update into a failed run.
pub const SETTLE: SignedDuration = SignedDuration::from_secs(10);
/// The `activeDeadlineSeconds` that ends a pod. A pod that has it is as good as over.
pub const LAST_DEADLINE_SECONDS: i64 = 1;
/// An Event's note may have 1024 bytes; what pods say of themselves may be longer.
const MESSAGE_BYTES: usize = 1000;

/// What is known beside the pod.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// What the pod's TaskRun says.
    pub verdict: Verdict,
    /// When a verdict was first seen for this pod, by our own clock. Without it, one that carries no time is never acted
    /// on, and one of an old Tekton is dated by Tekton's clock.
    pub verdict_seen: Option<Timestamp>,
    /// Now.
    pub now: Timestamp,
    /// The pod's namespace is labelled `kickstand.dev/inject: "false"`.
    pub namespace_opted_out: bool,
    /// Kickstand is being removed: every gate is to be opened, nothing else is to be begun.
    pub leaving: bool,
    /// The webhook is told that the pods of this TaskRun are to have classic sidecars.
    pub turned_classic: Option<&'a TurnedClassic>,
    /// Our nop image, by the name that a swap writes.
    pub nop_image: &'a str,
    /// What Tekton's nop image's name starts with.
    pub tekton_nop_images: &'a [String],
    /// The table of known sidecars.
    pub known: &'a Known,
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
    /// It follows from a verdict, or from one that is withheld, which must be confirmed by a live read of the TaskRun first:
    /// a cache only proposes.
    pub on_verdict: bool,
}

/// A change to a pod, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Opens the gate.
    OpenGate,
    /// Makes the kubelet look at the open gate once more. Nobody has to hear of it.
    Nudge,
    /// Stops these sidecars, in one patch.
    Stop {
        /// Which, and how.
        orders: Vec<Order>,
        /// If the API server refuses for good: end the pod (its verdict is recorded) rather than leave it running.
        else_end: bool,
    },
    /// Tells the webhook that the next pod of the TaskRun with this UID is to have classic sidecars. Nobody has to hear of
    /// it.
    TurnClassic {
        /// The TaskRun's UID.
        run: String,
    },
    /// Deletes the pod, of which no step has started, so that Tekton makes it anew.
    Replace,
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
    pub fn image(self, nop_image: &str) -> &str {
        match self {
            Self::Nop => nop_image,
            Self::Ended => ENDED_IMAGE,
        }
    }
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
    let stopped = contract::stopped(pod);
    let mut scene = Scene { pod, context, settings, stopped, decision: Decision::default() };
    let opted_out = context.namespace_opted_out || contract::opted_out(pod);
    let release = opted_out || context.leaving || !scene.settings.gate;
    if is_lost(pod) && !release {
        return Decision::default();
    }
    if !opted_out && !context.leaving {
        for malformed in malformed.iter().take(MALFORMED) {
            // With its value: one annotation may have several entries that cannot be read.
            let key = format!("{} {}", malformed.key, malformed.value);
            scene.say(Reason::BadAnnotation, key, &malformed.to_string());
        }
    }
    if gate::is_shut(pod) {
        scene.gate_is_shut(release);
    } else if !context.leaving {
        scene.nudge();
        if !opted_out && !is_lost(pod) && scene.settings.stop {
            scene.gate_is_open();
        }
    }
    scene.decision
}

/// Of more annotations, or entries of one, that cannot be read, nobody reads either.
const MALFORMED: usize = 8;

/// A pod, what is known beside it, and what has been decided so far.
struct Scene<'a> {
    pod: &'a Pod,
    context: &'a Context<'a>,
    settings: Settings,
    /// By our own note, read once.
    stopped: BTreeMap<String, Stopped>,
    decision: Decision,
}

impl Scene<'_> {
    /// From when on a recorded verdict may be acted on; `None` without one.
    fn settled(&self) -> Option<Timestamp> {
        let Verdict::Recorded { at, .. } = self.context.verdict else { return None };
        let now = self.context.now;
        match at {
            // Its clock may be ahead of ours, which is no reason to wait.
            Some(at) if tekton::names_its_owner(self.pod) => Some(at.min(now)),
            // Tekton may be about to write to the pod. And a verdict without a time is one by absence: a pod that was just
            // created in place of a lost one is named by its TaskRun a moment later.
            _ => {
                let since = self.context.verdict_seen.or(at).unwrap_or(now);
                Some(since.checked_add(SETTLE).unwrap_or(since))
            }
        }
    }

    /// Is it that long after `base`? If not yet, looks again then.
    fn is_due(&mut self, base: Timestamp, after: SignedDuration) -> bool {
        // Past the end of time: never.
        let Ok(due) = base.checked_add(after) else { return false };
        let is_due = due <= self.context.now;
        if !is_due {
            self.look_again_at(due);
        }
        is_due
    }

    fn act(&mut self, effect: Effect, reason: Reason, message: &str, on_verdict: bool) {
        let message = shortened(message);
        self.decision.actions.push(Action { effect, reason, message, on_verdict });
    }

    fn say(&mut self, reason: Reason, key: String, message: &str) {
        self.act(Effect::Say { key }, reason, message, false);
    }

    fn look_again_at(&mut self, time: Timestamp) {
        self.decision.again_at = Some(self.decision.again_at.map_or(time, |before| before.min(time)));
    }
}

/// The kubelet has not been heard of for so long that the pod's status means nothing. Its return is an event.
fn is_lost(pod: &Pod) -> bool {
    pod.status.phase == Phase::Unknown || pod.status.reason == "NodeLost"
}

/// The kubelet is ending it.
#[must_use]
pub fn is_past_deadline(pod: &Pod, now: Timestamp) -> bool {
    let Some(seconds) = pod.spec.active_deadline_seconds else { return false };
    let elapsed = pod.status.start_time.map(|start| now.duration_since(start));
    // The last one is set by us: the kubelet is at it, whatever our clocks say.
    seconds <= LAST_DEADLINE_SECONDS || elapsed.is_some_and(|elapsed| elapsed >= SignedDuration::from_secs(seconds))
}

fn shortened(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES {
        return message.to_owned();
    }
    let end = (0..=MESSAGE_BYTES).rev().find(|at| message.is_char_boundary(*at)).unwrap_or_default();
    format!("{}…", &message[..end])
}
