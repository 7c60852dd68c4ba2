//! The only writes to pods, and the Events on them.
//!
//! Permissions: `patch` on pods, `delete` for those that are to be made anew, `create` on `events.events.k8s.io`, in the namespaces that are watched.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod as CorePod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, DeleteParams, ObjectMeta, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::metrics::controller::{ActionKind, ActionResult, EventResult, Metrics, Refusal};
use crate::pod::contract::Reason;
use crate::pod::decide::Effect;
use crate::pod::model::Pod;
use crate::pod::patch;

/// Who speaks, in an Event.
pub const REPORTER: &str = "kickstand";
/// How long one request may take. Patches are small, and a leader must have stopped before the next one starts.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a request is sent before the pod is put back in the queue.
const TRIES: usize = 4;
/// How long one try waits for the next, at most.
const LONGEST_DELAY: Duration = Duration::from_secs(2);
/// A server that asks for more patience gets it, up to this.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);
/// The API server's limit for an Event's note, in bytes, is 1024.
const LONGEST_NOTE: usize = 1000;
/// How much of a refusal goes into an Event.
const LONGEST_WORDS: usize = 400;

/// Who acts, and with which image.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Our nop image, by the name that a swap writes.
    pub nop_image: String,
    /// This replica's name, in the Events that it writes.
    pub instance: String,
}

/// How an action went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is done.
    Done,
    /// The pod is gone, or is not what it was: look again.
    MovedOn,
    /// The API server will not have it, and asking again would not help.
    Refused {
        /// Its words, shortened.
        words: String,
    },
    /// No answer, or no useful one: try again later, and not before that long if the server said so.
    Unanswered(Option<Duration>),
    /// We lead no more, and may not act.
    Deposed,
}

/// What an error of the API server means for what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The pod is gone, or is not what it was.
    MovedOn,
    /// No, and asking again would not help.
    Refused(Refusal, String),
    /// Not now. Perhaps after this long.
    NotNow(Option<Duration>),
}

/// The one place that reads errors to a patch.
pub(crate) fn classify(error: &kube::Error) -> Answer {
    let status = match error {
        kube::Error::Api(status) => status,
        // The answer was a success that we cannot read: whatever it did, the watch will show.
        kube::Error::SerdeError(_) => return Answer::MovedOn,
        _ => return Answer::NotNow(None),
    };
    match status.code {
        404 | 409 | 410 => Answer::MovedOn,
        422 if patch_did_not_apply(status) => Answer::MovedOn,
        403 => Answer::Refused(Refusal::Forbidden, words(status)),
        422 => Answer::Refused(Refusal::Invalid, words(status)),
        // 401: a token that was just replaced. 408, 425, 429: later.
        401 | 408 | 425 | 429 => Answer::NotNow(retry_after(status)),
        400..=499 => Answer::Refused(Refusal::Other, words(status)),
        _ => Answer::NotNow(retry_after(status)),
    }
}

/// A JSON Patch whose `test` fails, or whose path is not there, is answered like an invalid object, but in words of its
/// own and with nothing of the object: an invalid one names the pod and the fields that are to blame, a policy itself.
fn patch_did_not_apply(status: &Status) -> bool {
    let details = status.details.as_ref();
    status.message.starts_with("the server rejected our request due to an error in our request")
        && details.is_none_or(|details| details.causes.is_empty())
}

fn retry_after(status: &Status) -> Option<Duration> {
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST_RETRY_AFTER))
}

fn words(status: &Status) -> String {
    let words = if status.message.is_empty() { &status.reason } else { &status.message };
    shorten(words, LONGEST_WORDS)
}

fn shorten(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let room = bytes - '…'.len_utf8();
    let end = text.char_indices().map(|(at, _)| at).take_while(|at| *at <= room).last().unwrap_or_default();
    format!("{}…", &text[..end])
}

/// Changes pods, while we lead.
#[derive(Clone)]
pub(crate) struct Effects {
    client: Client,
    settings: Settings,
    leading: watch::Receiver<bool>,
    now: fn() -> Timestamp,
    metrics: Metrics,
}

impl Effects {
    pub(crate) fn new(
        client: Client,
        settings: Settings,
        leading: watch::Receiver<bool>,
        now: fn() -> Timestamp,
        metrics: Metrics,
    ) -> Self {
        Self { client, settings, leading, now, metrics }
    }

    /// Changes a pod; an [`Effect::Say`] changes nothing, and is done.
    pub(crate) async fn change(&self, pod: &Pod, effect: &Effect) -> Outcome {
        let now = (self.now)();
        let (kind, patch) = match effect {
            Effect::OpenGate => (ActionKind::OpenGate, patch::open_gate(pod, now)),
            Effect::Nudge => (ActionKind::Nudge, patch::nudge(pod, now)),
            Effect::Stop { orders, .. } => (ActionKind::Stop, patch::stop(pod, orders, &self.settings.nop_image, now)),
            Effect::End => (ActionKind::End, patch::end(pod)),
            Effect::Replace => return self.delete(pod).await,
            Effect::TurnClassic { .. } | Effect::Say { .. } => return Outcome::Done,
        };
        // Only the metadata is sent back.
        let pods: Api<PartialObjectMeta<CorePod>> = Api::namespaced(self.client.clone(), &pod.metadata.namespace);
        let params = PatchParams { field_manager: Some(REPORTER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Json::<()>(patch);
        let name = pod.metadata.name.as_str();
        let answer = self.ask(|| pods.patch(name, &params, &patch)).await;
        self.outcome(pod, kind, answer.map(|_| ()))
    }

    /// Deletes this very pod, as it was seen, and at once: a kubelet that is given time for it reports the phase Failed
    /// first, and Tekton, if it sees that, fails the run (seen on 1.15).
    async fn delete(&self, pod: &Pod) -> Outcome {
        let pods: Api<CorePod> = Api::namespaced(self.client.clone(), &pod.metadata.namespace);
        let (uid, version) = (pod.metadata.uid.clone(), pod.metadata.resource_version.clone());
        let preconditions = Preconditions { uid: Some(uid), resource_version: Some(version) };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let answer = self.ask(|| pods.delete(&pod.metadata.name, &params)).await;
        self.outcome(pod, ActionKind::Replace, answer.map(|_| ()))
    }

    fn outcome(&self, pod: &Pod, kind: ActionKind, answer: Result<(), Failure>) -> Outcome {
        let pod = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        let (result, outcome) = match answer {
            Ok(()) => (ActionResult::Done, Outcome::Done),
            Err(Failure::Deposed) => return Outcome::Deposed,
            Err(Failure::Silence) => (ActionResult::Unanswered, Outcome::Unanswered(None)),
            Err(Failure::Error(error)) => match classify(&error) {
                Answer::MovedOn => (ActionResult::MovedOn, Outcome::MovedOn),
                Answer::NotNow(after) => {
                    warn!(pod, ?kind, %error, "no useful answer from the API server");
                    (ActionResult::Unanswered, Outcome::Unanswered(after))
                }
                Answer::Refused(class, words) => {
                    warn!(pod, ?kind, words, "refused by the API server");
                    if kind == ActionKind::Stop {
                        self.metrics.stop_refused(class);
                    }
                    (ActionResult::Refused, Outcome::Refused { words })
                }
            },
        };
        self.metrics.action(kind, result);
        outcome
    }

    /// Writes an Event on a pod, once for each `key`: its name is made of it, so that another replica, or this one after
    /// a restart, finds that it was said. (kube's own recorder would fold two of the same reason into one and keep the
    /// first's words, and it forgets when the process ends.)
    pub(crate) async fn say(&self, pod: &Pod, reason: Reason, key: &str, message: &str) -> Outcome {
        let event = self.event(pod, reason, key, message);
        let events: Api<Event> = Api::namespaced(self.client.clone(), &pod.metadata.namespace);
        let params = PostParams { field_manager: Some(REPORTER.to_owned()), ..PostParams::default() };
        let answer = self.ask(|| events.create(&params, &event)).await;
        let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
        let (result, outcome) = match answer {
            Ok(_) => {
                debug!(pod = name, reason = reason.as_str(), note = message, "Event written");
                (EventResult::Written, Outcome::Done)
            }
            Err(Failure::Deposed) => return Outcome::Deposed,
            Err(Failure::Silence) => (EventResult::Failed, Outcome::Unanswered(None)),
            Err(Failure::Error(kube::Error::Api(status))) if status.code == 409 => (EventResult::Known, Outcome::Done),
            Err(Failure::Error(error)) => {
                warn!(pod = name, reason = reason.as_str(), note = message, %error, "could not write the Event");
                let outcome = match classify(&error) {
                    Answer::NotNow(after) => Outcome::Unanswered(after),
                    Answer::MovedOn => Outcome::MovedOn,
                    Answer::Refused(_, words) => Outcome::Refused { words },
                };
                (EventResult::Failed, outcome)
            }
        };
        self.metrics.event(reason, result);
        outcome
    }

    /// Sends a request, several times if need be, but never without leading.
    async fn ask<T, F>(&self, request: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let once = || async {
            if !*self.leading.borrow() {
                return Err(Failure::Deposed);
            }
            match tokio::time::timeout(REQUEST_TIMEOUT, request()).await {
                Ok(answer) => answer.map_err(Failure::Error),
                Err(_) => Err(Failure::Silence),
            }
        };
        let delays = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(200))
            .with_max_delay(LONGEST_DELAY)
            .with_max_times(TRIES - 1)
            .with_jitter();
        once.retry(delays)
            .when(|failure| match failure {
                Failure::Deposed => false,
                Failure::Silence => true,
                Failure::Error(error) => matches!(classify(error), Answer::NotNow(_)),
            })
            .adjust(|failure, delay| match failure {
                Failure::Error(error) => match classify(error) {
                    // What takes longer is waited for in the queue, where it holds nobody up.
                    Answer::NotNow(Some(asked)) => {
                        delay.map(|delay| delay.max(asked)).filter(|_| asked <= LONGEST_DELAY)
                    }
                    _ => delay,
                },
                _ => delay,
            })
            .await
    }

    fn event(&self, pod: &Pod, reason: Reason, key: &str, message: &str) -> Event {
        let meta = &pod.metadata;
        let mark = fingerprint(&[&meta.uid, reason.as_str(), key]);
        Event {
            metadata: ObjectMeta {
                // A name has at most 253 bytes; a pod's has nothing but ASCII.
                name: Some(format!("{}.{mark:016x}", meta.name.get(..230).unwrap_or(&meta.name))),
                namespace: Some(meta.namespace.clone()),
                ..ObjectMeta::default()
            },
            action: Some(action(reason).to_owned()),
            event_time: Some(MicroTime((self.now)())),
            note: Some(shorten(message, LONGEST_NOTE)),
            reason: Some(reason.as_str().to_owned()),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(meta.name.clone()),
                namespace: Some(meta.namespace.clone()),
                uid: Some(meta.uid.clone()),
                ..ObjectReference::default()
            }),
            reporting_controller: Some(REPORTER.to_owned()),
            // Required, and of at most 128 bytes.
            reporting_instance: Some(match self.settings.instance.as_str() {
                "" => REPORTER.to_owned(),
                instance => shorten(instance, 128),
            }),
            type_: Some(if reason.is_warning() { "Warning" } else { "Normal" }.to_owned()),
            ..Event::default()
        }
    }
}

#[derive(Debug)]
enum Failure {
    Deposed,
    Silence,
    Error(kube::Error),
}

/// What was done, in an Event's `action`: machines read it, people the reason.
fn action(reason: Reason) -> &'static str {
    match reason {
        Reason::GateOpened | Reason::GateOpenedUnready => "OpenGate",
        Reason::GateHeld | Reason::GateClosed => "HoldGate",
        Reason::SidecarsStopped | Reason::StopRefused => "StopSidecars",
        Reason::PodEnded => "EndPod",
        Reason::PodReplaced => "ReplacePod",
        Reason::BadAnnotation => "ReadAnnotations",
    }
}

/// FNV-1a, 64 bits: the same in every build, since two replicas of different versions must agree.
fn fingerprint(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};
    use rstest::rstest;

    use super::*;

    fn api(code: u16, message: &str, details: Option<StatusDetails>) -> kube::Error {
        let mut status = Status::failure(message, "").with_code(code);
        status.details = details;
        kube::Error::Api(status.boxed())
    }

    /// `details: {}`, as the API server writes it.
    fn nothing() -> StatusDetails {
        serde_json::from_str("{}").unwrap()
    }

    fn blames_a_field() -> StatusDetails {
        let cause =
            StatusCause { field: "spec".into(), message: "Forbidden".into(), reason: "FieldValueForbidden".into() };
        StatusDetails { name: "p".into(), kind: "Pod".into(), causes: vec![cause], ..nothing() }
    }

    const NOT_APPLIED: &str = "the server rejected our request due to an error in our request";

    #[rstest]
    #[case::gone(404, "pods \"p\" not found", None)]
    #[case::conflict(409, "the object has been modified", None)]
    #[case::test_failed(422, NOT_APPLIED, Some(nothing()))]
    #[case::test_failed_without_details(422, NOT_APPLIED, None)]
    fn the_world_moved_on(#[case] code: u16, #[case] message: &str, #[case] details: Option<StatusDetails>) {
        assert_eq!(classify(&api(code, message, details)), Answer::MovedOn);
    }

    #[rstest]
    #[case::rbac(403, "pods \"p\" is forbidden: User \"x\" cannot patch", None, Refusal::Forbidden)]
    #[case::webhook(400, "admission webhook \"x\" denied the request: no", None, Refusal::Other)]
    #[case::policy(
        422,
        "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'x' denied request: no",
        None,
        Refusal::Invalid
    )]
    #[case::invalid(422, "Pod \"p\" is invalid: spec: Forbidden", Some(blames_a_field()), Refusal::Invalid)]
    #[case::sly(422, NOT_APPLIED, Some(blames_a_field()), Refusal::Invalid)]
    fn a_real_no(
        #[case] code: u16,
        #[case] message: &str,
        #[case] details: Option<StatusDetails>,
        #[case] class: Refusal,
    ) {
        assert_eq!(classify(&api(code, message, details)), Answer::Refused(class, message.to_owned()));
    }

    #[rstest]
    #[case::throttled(429, 3, Some(Duration::from_secs(3)))]
    #[case::throttled_for_long(429, 3600, Some(LONGEST_RETRY_AFTER))]
    #[case::token_replaced(401, 0, None)]
    #[case::webhook_down(500, 0, None)]
    #[case::unavailable(503, 0, None)]
    fn not_now(#[case] code: u16, #[case] seconds: u32, #[case] after: Option<Duration>) {
        let details = StatusDetails { retry_after_seconds: seconds, ..nothing() };
        assert_eq!(classify(&api(code, "", Some(details))), Answer::NotNow(after));
    }

    #[test]
    fn no_answer_at_all_is_no_refusal() {
        let error = kube::Error::Service("connection refused".into());
        assert_eq!(classify(&error), Answer::NotNow(None));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "ä".repeat(600);
        let short = shorten(&text, LONGEST_NOTE);
        assert!(short.len() <= LONGEST_NOTE && short.ends_with("ä…"), "{}", short.len());
    }

    #[test]
    fn an_event_is_named_by_what_it_says() {
        assert_eq!(fingerprint(&[]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(
            fingerprint(&["uid", "KickstandGateHeld", "held 1m"]),
            fingerprint(&["uid", "KickstandGateHeld", "held 1m"])
        );
        assert_ne!(fingerprint(&["uid", "a", "bc"]), fingerprint(&["uid", "ab", "c"]));
    }
}
