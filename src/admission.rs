//! `POST /ask` before the injectors, and `POST /mutate` after them: an AdmissionReview in, an AdmissionReview out.
//!
//! Whatever happens here, the pod is created: what cannot be decided is allowed untouched, with a warning for its user,
//! and what cannot even be answered gets an HTTP error, upon which the API server goes on without us
//! (`failurePolicy: Ignore`). What is decided is the business of `pod::ask` and `pod::mutate`; the object passes through here as it came.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use axum::routing::post;
use axum::{Json, Router};
use futures::StreamExt;
use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tracing::{debug, error, info, warn};

use crate::liveness::Liveness;
use crate::metrics::webhook::{AdmissionMetrics, Decision, NativeOutcome, Refusal};
use crate::metrics::{Closed, Raised};
use crate::pod::ask::{Asking, ask};
use crate::pod::known::Known;
use crate::pod::mutate::{self, Mutation, Options};
use crate::pod::native::Off;
use crate::pod::tekton;
use crate::telemetry::{Throttle, shortened};

/// The one version of AdmissionReview (Kubernetes ≥ 1.16) that is spoken here.
const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// The API server cuts a warning off there.
const WARNING_CHARACTERS: usize = 256;
/// The API server drops what goes beyond 4096 characters in sum.
const MAX_WARNINGS: usize = 8;
/// Of a text in a log line that somebody else chose; a Kubernetes name is no longer.
const LOGGED_CHARACTERS: usize = 253;
/// Log lines a second, of requests that were refused.
const REFUSALS_A_SECOND: u32 = 5;
/// Log lines a second, of reviews.
const REVIEWS_A_SECOND: u32 = 50;

/// How much is taken on.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Of one request's body. The API server takes 3 MiB from its own clients, and a review may carry two objects.
    pub max_body_bytes: usize,
    /// Of all bodies in work, together: what bounds our memory.
    pub max_buffered_bytes: usize,
    /// Reviews in work at a time.
    pub max_concurrent: usize,
    /// From a request's headers to its answer. Shorter than the webhook's own timeout (5 s), so that the API server
    /// learns why.
    pub deadline: Duration,
    /// Native sidecars, where they are safe.
    pub native: bool,
    /// Tekton's own wait goes where no classic sidecar is left.
    pub skip_tekton_wait: bool,
    /// The table of known sidecars.
    pub known: Known,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_body_bytes: 4 << 20,
            max_buffered_bytes: 16 << 20,
            max_concurrent: 256,
            deadline: Duration::from_secs(4),
            native: true,
            skip_tekton_wait: true,
            known: Known::builtin().clone(),
        }
    }
}

struct Webhook {
    settings: Settings,
    metrics: AdmissionMetrics,
    controller: Liveness,
    slots: Arc<Semaphore>,
    buffer: Arc<Semaphore>,
    refusals: Throttle,
    reviews: Throttle,
}

/// The webhook's endpoint.
pub fn router(settings: Settings, metrics: AdmissionMetrics, controller: Liveness) -> Router {
    let webhook = Webhook {
        slots: Arc::new(Semaphore::new(settings.max_concurrent)),
        buffer: Arc::new(Semaphore::new(settings.max_buffered_bytes)),
        refusals: Throttle::new(REFUSALS_A_SECOND),
        reviews: Throttle::new(REVIEWS_A_SECOND),
        settings,
        metrics,
        controller,
    };
    let wrong_method = async |State(webhook): State<Arc<Webhook>>| {
        let refused = Refused::new(Refusal::Method, "AdmissionReviews are POSTed here");
        ([(header::ALLOW, "POST")], webhook.refuse(&refused))
    };
    let not_found = async |State(webhook): State<Arc<Webhook>>| {
        webhook
            .refuse(&Refused::new(Refusal::NotFound, "there is nothing here; AdmissionReviews go to /ask and /mutate"))
    };
    let early =
        async |State(webhook): State<Arc<Webhook>>, request: HttpRequest| review(webhook, Call::Early, request).await;
    let late =
        async |State(webhook): State<Arc<Webhook>>, request: HttpRequest| review(webhook, Call::Late, request).await;
    Router::new()
        .route("/ask", post(early).fallback(wrong_method))
        .route("/mutate", post(late).fallback(wrong_method))
        .fallback(not_found)
        .with_state(Arc::new(webhook))
}

/// Which of our two webhook configurations calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Before the injectors: they are asked.
    Early,
    /// After them: all the rest.
    Late,
}

async fn review(webhook: Arc<Webhook>, call: Call, request: HttpRequest) -> HttpResponse {
    let began = Instant::now();
    let _in_flight = Raised::new(&webhook.metrics.in_flight);
    match timeout(webhook.settings.deadline, Arc::clone(&webhook).answer(call, request)).await {
        Ok(Ok((decision, answer))) => {
            webhook.metrics.reviewed(decision, began.elapsed());
            Json(answer).into_response()
        }
        Ok(Err(refused)) => webhook.refuse(&refused),
        Err(_) => webhook.refuse(&Refused::new(
            Refusal::Deadline,
            format!("the request was not read and answered in {:?}", webhook.settings.deadline),
        )),
    }
}

/// Why a request is not answered by a review, in words for whoever reads the API server's log.
#[derive(Debug)]
struct Refused {
    reason: Refusal,
    words: Cow<'static, str>,
}

impl Refused {
    fn new(reason: Refusal, words: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, words: words.into() }
    }

    fn status(&self) -> StatusCode {
        match self.reason {
            Refusal::NotFound => StatusCode::NOT_FOUND,
            Refusal::Method => StatusCode::METHOD_NOT_ALLOWED,
            Refusal::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Refusal::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::BodyBroken | Refusal::Malformed | Refusal::ApiVersion | Refusal::NoRequest => {
                StatusCode::BAD_REQUEST
            }
            Refusal::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::Deadline => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl Webhook {
    async fn answer(self: Arc<Self>, call: Call, request: HttpRequest) -> Result<(Decision, Answer), Refused> {
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            let max = self.settings.max_concurrent;
            return Err(Refused::new(Refusal::Overloaded, format!("{max} reviews are in work already")));
        };
        if !is_json(request.headers()) {
            return Err(Refused::new(Refusal::ContentType, "AdmissionReviews are taken as application/json"));
        }
        let (body, buffered) = self.body(request).await?;
        // A large pod takes a while, in which its thread serves nobody else: not one of those that read and write. It goes
        // on after the deadline, so what it takes up goes with it.
        let this = Arc::clone(&self);
        let decided = tokio::task::spawn_blocking(move || {
            let _taken = (slot, buffered);
            this.decide(call, &body)
        });
        let (request, outcome) =
            decided.await.map_err(|_| Refused::new(Refusal::Overloaded, "the review was broken off"))??;
        self.tell(&request, &outcome);
        if let Some(native) = outcome.native {
            self.metrics.native.count(native);
        }
        Ok((outcome.decision, outcome.answer(request.uid)))
    }

    fn decide(&self, call: Call, body: &[u8]) -> Result<(Request, Outcome), Refused> {
        let mut request = Request::read(body)?;
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let run = tekton::run_uid_of_raw(&request.object);
        let options = Options {
            controller_alive: self.controller.alive(),
            gates_refused: self.controller.refuses_gates(namespace),
            native: if self.settings.native { self.controller.native(namespace, run) } else { Err(Off::Setting) },
            skip_tekton_wait: self.settings.skip_tekton_wait,
            known: &self.settings.known,
        };
        let outcome = Outcome::of(&request, |object| match call {
            Call::Early => ask(object, &options).map(Outcome::asked),
            Call::Late => mutate::mutate(object, &options).map(Outcome::mutated),
        });
        // Only its name is still wanted, and to let go of the rest takes its time, too.
        request.name = Some(request.object_name().to_owned());
        request.object = Value::Null;
        Ok((request, outcome))
    }

    /// Reads a body, as far as it and all others in work may go.
    async fn body(&self, request: HttpRequest) -> Result<(Vec<u8>, OwnedSemaphorePermit), Refused> {
        let max = self.settings.max_body_bytes;
        let too_large = || Refused::new(Refusal::TooLarge, format!("more than {max} bytes are not taken"));
        let overloaded = |_| Refused::new(Refusal::Overloaded, "too much is in work already");
        if announced_bytes(request.headers()).is_some_and(|announced| announced > max) {
            return Err(too_large());
        }
        let mut permit = Arc::clone(&self.buffer).try_acquire_many_owned(0).map_err(overloaded)?;
        let mut bytes = Vec::new();
        let mut chunks = request.into_body().into_data_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk =
                chunk.map_err(|error| Refused::new(Refusal::BodyBroken, format!("the body broke off: {error}")))?;
            if bytes.len() + chunk.len() > max {
                return Err(too_large());
            }
            let more = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            permit.merge(Arc::clone(&self.buffer).try_acquire_many_owned(more).map_err(overloaded)?);
            bytes.extend_from_slice(&chunk);
        }
        Ok((bytes, permit))
    }

    fn refuse(&self, refused: &Refused) -> HttpResponse {
        let (status, reason) = (refused.status(), refused.reason.as_label());
        self.metrics.refusals.count(refused.reason);
        if let Some(left_out) = self.refusals.pass() {
            warn!(status = status.as_u16(), reason, why = &*refused.words, left_out, "refused a request");
        }
        (status, format!("kickstand: {}\n", refused.words)).into_response()
    }

    fn tell(&self, request: &Request, outcome: &Outcome) {
        let (uid, dry_run) = (shortened(&request.uid, LOGGED_CHARACTERS), request.dry_run.unwrap_or_default());
        let namespace = shortened(request.namespace.as_deref().unwrap_or_default(), LOGGED_CHARACTERS);
        let name = shortened(request.object_name(), LOGGED_CHARACTERS);
        let decision = outcome.decision.as_label();
        let why = shortened(&outcome.why, 2 * LOGGED_CHARACTERS);
        if outcome.decision.is_silent() {
            return debug!(namespace, name, decision, why, dry_run, uid, "not gated");
        }
        let Some(left_out) = self.reviews.pass() else { return };
        match outcome.decision {
            Decision::Gated => {
                info!(namespace, name, decision, waits_for = why, dry_run, uid, left_out, "the first step is held");
            }
            Decision::NotAPodCreation => {
                warn!(
                    namespace,
                    name,
                    decision,
                    why,
                    dry_run,
                    uid,
                    left_out,
                    "no creation of a pod: left as it is; the rules of the webhook configuration ask for too much"
                );
            }
            Decision::Untypable | Decision::InternalError => {
                error!(namespace, name, decision, why, dry_run, uid, left_out, "cannot decide this: left as it is");
            }
            _ => warn!(namespace, name, decision, why, dry_run, uid, left_out, "not gated"),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

fn announced_bytes(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// What is read of an AdmissionReview. Not kube's types: theirs would parse, and lose, what we do not look at.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Request>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Request {
    uid: String,
    resource: Resource,
    sub_resource: Option<String>,
    name: Option<String>,
    /// Where the object is created; its own `metadata.namespace` may still be empty.
    namespace: Option<String>,
    operation: String,
    dry_run: Option<bool>,
    object: Value,
}

/// What the rule of the webhook configuration matched. (With `matchPolicy: Equivalent` the object is of this version.)
#[derive(Deserialize, Default, PartialEq, Eq)]
#[serde(default)]
struct Resource {
    group: String,
    version: String,
    #[serde(rename = "resource")]
    plural: String,
}

impl Request {
    fn read(body: &[u8]) -> Result<Self, Refused> {
        let review: Review = serde_json::from_slice(body).map_err(|error| {
            let why = error.to_string();
            Refused::new(
                Refusal::Malformed,
                format!("the body is no AdmissionReview in JSON: {}", shortened(&why, LOGGED_CHARACTERS)),
            )
        })?;
        if review.api_version != API_VERSION || review.kind != KIND {
            let (version, kind) = (shortened(&review.api_version, 64), shortened(&review.kind, 64));
            let words = format!(
                "this is a \"{kind}\" of \"{version}\"; an {KIND} of {API_VERSION} is answered here (admissionReviewVersions: [\"v1\"])"
            );
            return Err(Refused::new(Refusal::ApiVersion, words));
        }
        let request =
            review.request.ok_or_else(|| Refused::new(Refusal::NoRequest, "the AdmissionReview has no request"))?;
        if request.uid.is_empty() {
            return Err(Refused::new(Refusal::NoRequest, "the AdmissionReview's request has no uid"));
        }
        Ok(request)
    }

    fn creates_a_pod(&self) -> bool {
        let Resource { group, version, plural } = &self.resource;
        self.operation == "CREATE"
            && (group.as_str(), version.as_str(), plural.as_str()) == ("", "v1", "pods")
            && self.sub_resource.as_deref().unwrap_or_default().is_empty()
    }

    /// As far as it has one yet: a pod's name is mostly made of its `generateName`, after admission.
    fn object_name(&self) -> &str {
        let text = |path| self.object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
        text("/metadata/name").or_else(|| text("/metadata/generateName")).or(self.name.as_deref()).unwrap_or_default()
    }
}

/// What becomes of a pod, in the answer and in the log.
struct Outcome {
    decision: Decision,
    patch: Option<Vec<u8>>,
    warnings: Vec<String>,
    /// The decision's reason, or whom a gated pod waits for, or which injectors were asked.
    why: String,
    /// What became of the sidecars, and of Tekton's own wait.
    native: Option<NativeOutcome>,
}

impl Outcome {
    fn of(request: &Request, decide: impl FnOnce(&Value) -> Result<Self, serde_json::Error>) -> Self {
        if !request.creates_a_pod() {
            let Resource { group, version, plural } = &request.resource;
            let what = format!(
                "{} of {group}/{version} {plural} {}",
                request.operation,
                request.sub_resource.as_deref().unwrap_or_default()
            );
            return Self::untouched(Decision::NotAPodCreation, what);
        }
        // Nothing outlives a panic here but what was lent for reading.
        match catch_unwind(AssertUnwindSafe(|| decide(&request.object))) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => {
                Self::fault(Decision::Untypable, &format!("this is no Pod as this build knows it: {error}"))
            }
            Err(_) => Self::fault(Decision::InternalError, "an internal error"),
        }
    }

    fn mutated(mutation: Mutation) -> Self {
        let decision = Decision::from(&mutation.decision);
        let native = NativeOutcome::of(&mutation);
        let why = match mutation.decision {
            mutate::Decision::Gated(waits_for) => waits_for.join(","),
            mutate::Decision::Ungated(why) => why.to_string(),
        };
        Self { warnings: mutation.warnings, native, ..Self::patched(decision, &mutation.patch, why) }
    }

    fn asked(asking: Asking) -> Self {
        let (decision, why) = match asking.asked {
            None => (Decision::NotATaskRun, "not the pod of a TaskRun, or opted out".to_owned()),
            Some(Ok(asked)) => (Decision::Asked, asked.join(",")),
            Some(Err(stays)) => (Decision::NotAsked, stays.to_string()),
        };
        Self::patched(decision, &asking.patch, why)
    }

    fn patched(decision: Decision, patch: &Patch, why: String) -> Self {
        let patch = if patch.0.is_empty() { None } else { Some(serde_json::to_vec(patch)) };
        match patch.transpose() {
            Ok(patch) => Self { patch, ..Self::untouched(decision, why) },
            Err(error) => Self::fault(Decision::InternalError, &format!("the patch cannot be written: {error}")),
        }
    }

    fn untouched(decision: Decision, why: String) -> Self {
        Self { decision, patch: None, warnings: Vec::new(), why, native: None }
    }

    fn fault(decision: Decision, why: &str) -> Self {
        let warning = format!("kickstand: the pod is left as it is: {why}");
        Self { warnings: vec![warning], ..Self::untouched(decision, why.to_owned()) }
    }

    fn answer(self, uid: String) -> Answer {
        let mut audit_annotations = BTreeMap::new();
        // The other pods of a cluster are none of our business, not even in its audit log.
        if self.decision != Decision::NotATaskRun {
            audit_annotations.insert("decision", self.decision.as_label().to_owned());
        }
        match self.decision {
            Decision::Gated => drop(audit_annotations.insert("waits-for", self.why)),
            Decision::Asked => drop(audit_annotations.insert("asked", self.why)),
            Decision::NotAsked => drop(audit_annotations.insert("why", self.why)),
            _ => {}
        }
        if let Some(native) = self.native.filter(|native| *native != NativeOutcome::Classic) {
            audit_annotations.insert("native", native.as_label().to_owned());
        }
        let patch_type = self.patch.is_some().then_some("JSONPatch");
        let patch = self.patch.map(ByteString);
        let warnings = self.warnings.iter().take(MAX_WARNINGS).map(|text| warning(text)).collect();
        let response = Response { uid, allowed: true, patch, patch_type, audit_annotations, warnings };
        Answer { api_version: API_VERSION, kind: KIND, response }
    }
}

/// As the API server can hand it on, in an HTTP header: one line, and not too long.
fn warning(text: &str) -> String {
    let line: String = text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect();
    match shortened(&line, WARNING_CHARACTERS) {
        whole if whole.len() == line.len() => line,
        _ => format!("{}…", shortened(&line, WARNING_CHARACTERS - 1)),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod_creation() -> Request {
        Request {
            uid: "u".into(),
            resource: Resource { group: String::new(), version: "v1".into(), plural: "pods".into() },
            operation: "CREATE".into(),
            object: json!({ "metadata": { "generateName": "run-" } }),
            ..Request::default()
        }
    }

    #[test]
    fn a_panic_is_a_warning_and_the_pod_is_created() {
        let outcome = Outcome::of(&pod_creation(), |_| panic!("at the disco"));
        assert_eq!(outcome.decision, Decision::InternalError);
        let answer = outcome.answer("u".into()).response;
        assert!(answer.allowed && answer.patch.is_none());
        assert_eq!(answer.warnings, ["kickstand: the pod is left as it is: an internal error"]);
    }

    #[test]
    fn an_object_is_called_by_the_best_name_it_has() {
        let mut request = pod_creation();
        assert_eq!(request.object_name(), "run-");
        request.object = json!({ "metadata": { "name": "run-pod", "generateName": "run-" } });
        assert_eq!(request.object_name(), "run-pod");
        request.object = json!({ "metadata": "what?" });
        request.name = Some("from-the-request".into());
        assert_eq!(request.object_name(), "from-the-request");
    }

    #[test]
    fn a_warning_fits_into_a_header() {
        assert_eq!(warning("two\r\nlines"), "two  lines");
        assert_eq!(warning(&"ä".repeat(256)).chars().count(), 256);
        let long = warning(&"ä".repeat(257));
        assert_eq!(long.chars().count(), 256);
        assert!(long.ends_with('…'));
    }
}
