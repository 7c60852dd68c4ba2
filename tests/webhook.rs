//! The webhook from the outside: every answer of its routes, without a socket, and how it stands slow, wrong and many
//! clients, and its own end, on a real listener.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends there")]

mod support;

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, Response, StatusCode, header};
use axum::{Router, http};
use futures::future::join_all;
use futures::stream;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::ByteString;
use kickstand::metrics::webhook::{
    AdmissionMetrics, Decision, HandshakeFailure, NativeOutcome, Refusal, ServerMetrics,
};
use kickstand::readiness::Readiness;
use kickstand::shutdown::Shutdown;
use kickstand::{admin, admission, metrics, server};
use prometheus_client::registry::Registry;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tower::ServiceExt;

use support::{
    Log, Webhook, answer, closed, connect, controller, development_ca, exchange, head, pod, review, soon, until,
};

// ---- Answers: the routes, without a socket.

fn router(settings: admission::Settings, alive: bool) -> (Router, AdmissionMetrics) {
    let metrics = AdmissionMetrics::register(&mut Registry::default());
    (admission::router(settings, metrics.clone(), controller(alive)), metrics)
}

fn post(body: impl Into<Body>) -> Request<Body> {
    Request::post("/mutate").header(header::CONTENT_TYPE, "application/json").body(body.into()).unwrap()
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

/// What the webhook answers to a review: its `response`.
async fn reviewed(review: &Value, alive: bool) -> (Value, AdmissionMetrics) {
    let (router, metrics) = router(admission::Settings::default(), alive);
    (answered(router, "/mutate", review, &metrics).await, metrics)
}

async fn answered(router: Router, path: &str, review: &Value, metrics: &AdmissionMetrics) -> Value {
    let mut request = post(review.to_string());
    *request.uri_mut() = path.parse().unwrap();
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    let answer: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!((&answer["apiVersion"], &answer["kind"]), (&json!("admission.k8s.io/v1"), &json!("AdmissionReview")));
    let answer = answer["response"].clone();
    assert_eq!(answer["uid"], review["request"]["uid"], "the answer is to this request");
    assert_eq!(answer["allowed"], true, "nothing is ever forbidden");
    assert_eq!(metrics.in_flight.get(), 0);
    answer
}

/// A pod as the API server makes it of our answer.
fn patched(mut pod: Value, answer: &Value) -> Value {
    assert_eq!(answer["patchType"], "JSONPatch");
    let ByteString(patch) = serde_json::from_value(answer["patch"].clone()).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

fn assert_untouched(answer: &Value) {
    assert_eq!((answer.get("patch"), answer.get("patchType")), (None, None), "no patch at all, not an empty one");
}

/// The pod with a sidecar that can be moved.
fn with_a_server() -> Value {
    let mut pod = pod();
    pod["spec"]["containers"][0]["readinessProbe"] = json!({ "tcpSocket": { "port": 80 } });
    pod
}

#[tokio::test]
async fn a_server_that_the_task_declares_becomes_the_kubelets() {
    let (answer, metrics) = reviewed(&review(&with_a_server()), true).await;
    let moved = patched(with_a_server(), &answer);
    assert_eq!(moved["spec"]["initContainers"][0]["name"], "sidecar-web");
    assert_eq!(moved["spec"]["initContainers"][0]["restartPolicy"], "Always");
    assert_eq!(
        answer["auditAnnotations"],
        json!({ "decision": "gated", "waits-for": "sidecar-web", "native": "moved" })
    );
    assert_eq!(metrics.native.of(NativeOutcome::Moved), 1);
}

#[tokio::test]
async fn an_operator_can_switch_native_sidecars_off() {
    let settings = admission::Settings { native: false, ..admission::Settings::default() };
    let (router, metrics) = router(settings, true);
    for path in ["/ask", "/mutate"] {
        let answer = answered(router.clone(), path, &review(&with_a_server()), &metrics).await;
        let native = answer["auditAnnotations"].get("native").cloned();
        assert!(native.is_none_or(|native| native == "classic"), "{answer}");
        assert_ne!(answer["auditAnnotations"]["decision"], "asked");
    }
    assert_eq!(metrics.native.of(NativeOutcome::Classic), 1);
}

#[tokio::test]
async fn before_the_injectors_they_are_asked_and_nothing_else_happens() {
    let (router, metrics) = router(admission::Settings::default(), true);
    let answer = answered(router.clone(), "/ask", &review(&with_a_server()), &metrics).await;
    let mut asked = patched(with_a_server(), &answer);
    assert_eq!(asked["metadata"]["annotations"], json!({ "sidecar.istio.io/nativeSidecar": "true" }));
    asked["metadata"].as_object_mut().unwrap().shift_remove("annotations");
    assert_eq!(asked, with_a_server());
    assert_eq!(answer["auditAnnotations"]["asked"], "sidecar.istio.io/nativeSidecar");

    // One that stays classic makes all of them classic.
    let answer = answered(router, "/ask", &review(&pod()), &metrics).await;
    assert_untouched(&answer);
    assert_eq!(answer["auditAnnotations"]["why"], "sidecar-web has no readinessProbe");
    assert_eq!((metrics.reviews.of(Decision::Asked), metrics.reviews.of(Decision::NotAsked)), (1, 1));
}

#[tokio::test]
async fn a_first_step_is_made_to_wait_and_nothing_else_is_touched() {
    let (answer, metrics) = reviewed(&review(&pod()), true).await;
    let gated = patched(pod(), &answer);
    assert_eq!(gated["spec"]["containers"][1]["args"][1], "/tekton/downward/ready,/kickstand/ready");
    assert_eq!(gated["spec"]["fieldOfTomorrow"], json!({ "kept": true }));
    assert_eq!(gated["spec"]["containers"][0], pod()["spec"]["containers"][0]);
    assert_eq!(answer["auditAnnotations"], json!({ "decision": "gated", "waits-for": "sidecar-web" }));
    assert_eq!(answer.get("warnings"), None);
    assert_eq!(metrics.reviews.of(Decision::Gated), 1);
}

#[tokio::test]
async fn a_second_call_on_our_own_output_has_nothing_to_say() {
    let (answer, _) = reviewed(&review(&pod()), true).await;
    let (again, metrics) = reviewed(&review(&patched(pod(), &answer)), true).await;
    assert_untouched(&again);
    assert_eq!(metrics.reviews.of(Decision::Gated), 1);
}

#[tokio::test]
async fn a_dry_run_gets_the_same_answer() {
    let mut dry = review(&pod());
    dry["request"]["dryRun"] = true.into();
    assert_eq!(reviewed(&dry, true).await.0, reviewed(&review(&pod()), true).await.0);
}

#[tokio::test]
async fn without_a_live_controller_nothing_is_gated_and_the_user_is_told() {
    let (answer, metrics) = reviewed(&review(&pod()), false).await;
    assert_untouched(&answer);
    assert_eq!(answer["auditAnnotations"], json!({ "decision": "no_controller" }));
    assert!(answer["warnings"][0].as_str().unwrap().contains("no live controller"));
    assert_eq!(metrics.reviews.of(Decision::NoController), 1);
}

#[tokio::test]
async fn where_the_controller_cannot_open_gates_none_is_added_and_the_user_is_told() {
    let mut locked = review(&pod());
    locked["request"]["namespace"] = "locked".into();
    let (answer, metrics) = reviewed(&locked, true).await;
    assert_untouched(&answer);
    assert_eq!(answer["auditAnnotations"], json!({ "decision": "gates_refused" }));
    assert!(answer["warnings"][0].as_str().unwrap().contains("refused to have gates opened"), "{answer}");
    assert_eq!(metrics.reviews.of(Decision::GatesRefused), 1);
}

#[tokio::test]
async fn a_pod_that_is_none_of_ours_passes_in_silence() {
    let (answer, metrics) = reviewed(&review(&json!({ "metadata": { "name": "web" }, "spec": {} })), true).await;
    assert_eq!(answer, json!({ "uid": answer["uid"], "allowed": true }));
    assert_eq!(metrics.reviews.of(Decision::NotATaskRun), 1);
}

#[rstest]
#[case::an_update("operation", json!("UPDATE"))]
#[case::a_deletion("operation", json!("DELETE"))]
#[case::another_kind("resource", json!({ "group": "apps", "version": "v1", "resource": "deployments" }))]
#[case::another_group("resource", json!({ "group": "metrics.k8s.io", "version": "v1", "resource": "pods" }))]
#[case::a_subresource("subResource", json!("ephemeralcontainers"))]
#[tokio::test]
async fn what_is_no_creation_of_a_pod_passes_untouched(#[case] field: &str, #[case] value: Value) {
    let mut other = review(&pod());
    other["request"][field] = value;
    let (answer, metrics) = reviewed(&other, true).await;
    assert_untouched(&answer);
    assert_eq!(metrics.reviews.of(Decision::NotAPodCreation), 1);
}

#[rstest]
#[case::no_object(Value::Null)]
#[case::no_map(json!("pod"))]
#[case::labels_of_another_type(json!({ "metadata": { "name": "odd", "labels": "x".repeat(1000) } }))]
#[tokio::test]
async fn an_object_that_is_no_pod_passes_with_a_warning(#[case] object: Value) {
    let (answer, metrics) = reviewed(&review(&object), true).await;
    assert_untouched(&answer);
    let warning = answer["warnings"][0].as_str().unwrap();
    assert!(warning.starts_with("kickstand: the pod is left as it is: "), "{warning}");
    assert!(warning.chars().count() <= 256, "{warning}");
    assert_eq!(metrics.reviews.of(Decision::Untypable), 1);
}

#[tokio::test]
async fn many_warnings_are_a_few() {
    let mut pod = pod();
    let finish: Vec<String> = (0..100).map(|nth| format!("sidecar-{nth}=soon\n")).collect();
    pod["metadata"]["annotations"] = json!({ "kickstand.dev/finish": finish.join(",") });
    let (answer, _) = reviewed(&review(&pod), true).await;
    let warnings = answer["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 8);
    assert!(warnings.iter().all(|warning| !warning.as_str().unwrap().contains('\n')));
}

// ---- Refusals: what cannot be answered by a review.

async fn refused(router: Router, request: Request<Body>, status: StatusCode, words: &str) {
    let response = router.oneshot(request).await.unwrap();
    assert_eq!(response.status(), status);
    assert!(response.headers()[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/plain"));
    let text = text(response).await;
    assert!(text.starts_with("kickstand: ") && text.contains(words), "\"{text}\" does not say \"{words}\"");
}

fn with(path: &str, value: Value) -> String {
    let mut review = review(&pod());
    let (parent, field) = path.rsplit_once('/').unwrap();
    review.pointer_mut(parent).unwrap()[field] = value;
    review.to_string()
}

#[rstest]
#[case::another_method(Request::get("/mutate").body(Body::empty()), 405, Refusal::Method, "POST")]
#[case::another_path(Request::post("/").body(Body::empty()), 404, Refusal::NotFound, "/mutate")]
#[case::no_content_type(Request::post("/mutate").body(Body::from("{}")), 415, Refusal::ContentType, "application/json")]
#[case::yaml(
    Request::post("/mutate").header("content-type", "application/yaml").body(Body::from("{}")),
    415, Refusal::ContentType, "application/json"
)]
#[case::no_body(Ok(post("")), 400, Refusal::Malformed, "no AdmissionReview in JSON")]
#[case::no_json(Ok(post("{\"apiVersion\": ")), 400, Refusal::Malformed, "no AdmissionReview in JSON")]
#[case::too_deep(Ok(post("[".repeat(100_000))), 400, Refusal::Malformed, "no AdmissionReview in JSON")]
#[case::a_uid_of_another_type(Ok(post(with("/request/uid", json!(1)))), 400, Refusal::Malformed, "no AdmissionReview")]
#[case::another_version(
    Ok(post(with("/apiVersion", json!("admission.k8s.io/v1beta1")))),
    400, Refusal::ApiVersion, "admissionReviewVersions"
)]
#[case::another_kind(Ok(post(with("/kind", json!("ConversionReview")))), 400, Refusal::ApiVersion, "ConversionReview")]
#[case::an_empty_object(Ok(post("{}")), 400, Refusal::ApiVersion, "admission.k8s.io/v1")]
#[case::no_request(Ok(post(with("/request", Value::Null))), 400, Refusal::NoRequest, "no request")]
#[case::no_uid(Ok(post(with("/request/uid", json!("")))), 400, Refusal::NoRequest, "no uid")]
#[tokio::test]
async fn what_is_no_review_is_refused_in_words(
    #[case] request: Result<Request<Body>, http::Error>,
    #[case] status: u16,
    #[case] reason: Refusal,
    #[case] words: &str,
) {
    let (router, metrics) = router(admission::Settings::default(), true);
    refused(router, request.unwrap(), StatusCode::from_u16(status).unwrap(), words).await;
    assert_eq!(metrics.refusals.of(reason), 1);
}

#[tokio::test]
async fn a_wrong_method_is_told_the_right_one() {
    let (router, _) = router(admission::Settings::default(), true);
    let response = router.oneshot(Request::put("/mutate").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.headers()[header::ALLOW], "POST");
}

#[tokio::test]
async fn a_charset_does_no_harm() {
    let (router, _) = router(admission::Settings::default(), true);
    let request = Request::post("/mutate").header(header::CONTENT_TYPE, "Application/JSON; charset=utf-8");
    let response = router.oneshot(request.body(Body::from(review(&pod()).to_string())).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

fn chunks(chunks: Vec<io::Result<&'static [u8]>>) -> Body {
    Body::from_stream(stream::iter(chunks.into_iter().map(|chunk| chunk.map(Bytes::from_static))))
}

/// A body that begins and does not go on.
fn stalled() -> Body {
    use futures::StreamExt;
    Body::from_stream(stream::iter([Ok::<_, io::Error>(Bytes::from_static(b"{"))]).chain(stream::pending()))
}

fn small() -> admission::Settings {
    admission::Settings {
        max_body_bytes: 16,
        max_buffered_bytes: 24,
        max_concurrent: 1,
        deadline: Duration::from_millis(50),
        ..admission::Settings::default()
    }
}

#[tokio::test]
async fn too_large_a_body_is_refused_announced_or_not() {
    let (router, metrics) = router(small(), true);
    let announced = Request::post("/mutate")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_LENGTH, "17")
        .body(stalled())
        .unwrap();
    refused(router.clone(), announced, StatusCode::PAYLOAD_TOO_LARGE, "more than 16 bytes").await;
    let unannounced = post(chunks(vec![Ok(b"0123456789"), Ok(b"0123456789")]));
    refused(router, unannounced, StatusCode::PAYLOAD_TOO_LARGE, "more than 16 bytes").await;
    assert_eq!(metrics.refusals.of(Refusal::TooLarge), 2);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused() {
    let (router, metrics) = router(small(), true);
    let broken = post(chunks(vec![Ok(b"{"), Err(io::ErrorKind::ConnectionReset.into())]));
    refused(router, broken, StatusCode::BAD_REQUEST, "broke off").await;
    assert_eq!(metrics.refusals.of(Refusal::BodyBroken), 1);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let (router, metrics) = router(small(), true);
    refused(router, post(stalled()), StatusCode::GATEWAY_TIMEOUT, "not read and answered in 50ms").await;
    assert_eq!((metrics.refusals.of(Refusal::Deadline), metrics.in_flight.get()), (1, 0));
}

#[tokio::test]
async fn one_review_too_many_is_refused_at_once_and_the_next_is_not() {
    let settings = admission::Settings { deadline: support::HANG, max_concurrent: 1, ..Default::default() };
    let (router, metrics) = router(settings, true);
    let first = tokio::spawn(router.clone().oneshot(post(stalled())));
    until("the first", || metrics.in_flight.get() == 1).await;
    refused(router.clone(), post(review(&pod()).to_string()), StatusCode::SERVICE_UNAVAILABLE, "1 reviews are in work")
        .await;
    assert_eq!(metrics.refusals.of(Refusal::Overloaded), 1);

    first.abort();
    until("the first one's end", || metrics.in_flight.get() == 0).await;
    let response = router.oneshot(post(review(&pod()).to_string())).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn more_than_memory_is_given_for_is_refused() {
    let settings = admission::Settings { max_buffered_bytes: 24, ..Default::default() };
    let (router, metrics) = router(settings, true);
    let body = post(chunks(vec![Ok(b"0123456789abcdef"), Ok(b"0123456789abcdef")]));
    refused(router.clone(), body, StatusCode::SERVICE_UNAVAILABLE, "too much").await;
    assert_eq!(metrics.refusals.of(Refusal::Overloaded), 1);
    refused(router, post("0123456789abcdef"), StatusCode::BAD_REQUEST, "JSON").await;
}

#[tokio::test]
async fn a_decision_is_one_line_with_its_pod_in_it() {
    let (log, _guard) = Log::capture();
    reviewed(&review(&pod()), true).await;
    let lines = log.lines("decision=\"gated\"");
    assert_eq!(lines.len(), 1);
    for part in ["INFO", "namespace=\"ci\"", "name=\"run-pod-\"", "waits_for=\"sidecar-web\""] {
        assert!(lines[0].contains(part), "no {part} in {}", lines[0]);
    }
}

#[tokio::test]
async fn a_flood_of_refusals_is_counted_and_not_told() {
    let (log, _guard) = Log::capture();
    let (router, metrics) = router(admission::Settings::default(), true);
    for _ in 0..500 {
        router.clone().oneshot(post("")).await.unwrap();
    }
    assert_eq!(metrics.refusals.of(Refusal::Malformed), 500);
    let lines = log.lines("refused a request").len();
    assert!((1..100).contains(&lines), "{lines} lines");
}

// ---- Connections: a real listener.

/// Little, but only for one thing: a slow machine must not be taken for a slow client.
const IMPATIENCE: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_client_that_does_not_begin_with_tls_is_let_go() {
    let settings = server::Settings { handshake_timeout: IMPATIENCE, ..server::Settings::default() };
    let webhook = Webhook::start(admission::Settings::default(), settings).await;
    closed(TcpStream::connect(webhook.address).await.unwrap()).await;
    until("no connection", || webhook.server.connections.get() == 0).await;
    assert_eq!(webhook.server.handshake_failures.of(HandshakeFailure::Timeout), 1);
}

#[tokio::test]
async fn a_client_that_asks_for_nothing_is_let_go() {
    let settings = server::Settings { header_timeout: IMPATIENCE, ..server::Settings::default() };
    let webhook = Webhook::start(admission::Settings::default(), settings).await;
    closed(webhook.connect().await.unwrap()).await;
    until("no connection", || webhook.server.connections.get() == 0).await;
}

#[tokio::test]
async fn a_client_that_trickles_its_headers_is_let_go() {
    let settings = server::Settings { header_timeout: IMPATIENCE, ..server::Settings::default() };
    let webhook = Webhook::start(admission::Settings::default(), settings).await;
    let (read, mut write) = tokio::io::split(webhook.connect().await.unwrap());
    let trickle = async {
        write.write_all(b"POST /mutate HTTP/1.1\r\n").await?;
        loop {
            write.write_all(b"x-y: z\r\n").await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        #[allow(unreachable_code, reason = "gives the block its type")]
        Ok::<(), io::Error>(())
    };
    tokio::select! {
        () = closed(read) => {}
        _ = trickle => {}
    }
    until("no connection", || webhook.server.connections.get() == 0).await;
}

#[tokio::test]
async fn a_client_that_stalls_in_its_body_gets_an_answer() {
    let settings = admission::Settings { deadline: IMPATIENCE, ..Default::default() };
    let webhook = Webhook::start(settings, server::Settings::default()).await;
    let mut stream = webhook.connect().await.unwrap();
    stream.write_all(head(1000).as_bytes()).await.unwrap();
    stream.write_all(b"{").await.unwrap();
    assert!(answer(&mut stream).await.unwrap().starts_with("HTTP/1.1 504 "));
    closed(stream).await;
}

#[tokio::test]
async fn an_idle_connection_is_let_go() {
    let settings = server::Settings { idle_timeout: IMPATIENCE, ..server::Settings::default() };
    let webhook = Webhook::start(admission::Settings::default(), settings).await;
    let mut stream = webhook.connect().await.unwrap();
    assert!(exchange(&mut stream, &review(&pod())).await.unwrap().starts_with("HTTP/1.1 200 "));
    closed(stream).await;
    until("no connection", || webhook.server.connections.get() == 0).await;
}

#[tokio::test]
async fn plain_http_gets_a_closed_connection_and_a_line_that_says_why() {
    let (log, _guard) = Log::capture();
    let webhook = Webhook::start(admission::Settings::default(), server::Settings::default()).await;
    let mut stream = TcpStream::connect(webhook.address).await.unwrap();
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    closed(stream).await;
    until("the count", || webhook.server.handshake_failures.of(HandshakeFailure::NotTls) == 1).await;
    assert_eq!(log.lines("the client does not speak TLS").len(), 1);
    assert!(webhook.review_once().await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_caller_that_does_not_trust_us_is_counted_and_told_of() {
    let (log, _guard) = Log::capture();
    let webhook = Webhook::start(admission::Settings::default(), server::Settings::default()).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let mut other = rcgen::CertificateParams::new(Vec::new()).unwrap();
    other.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let other = other.self_signed(&key).unwrap().der().clone();
    connect(webhook.address, &other, &[]).await.unwrap_err();
    until("the count", || webhook.server.handshake_failures.of(HandshakeFailure::Untrusted) == 1).await;
    assert_eq!(log.lines("caBundle").len(), 1);
}

#[tokio::test]
async fn ten_mebibytes_are_refused_and_the_next_is_served() {
    let webhook = Webhook::start(admission::Settings::default(), server::Settings::default()).await;
    let (mut read, mut write) = tokio::io::split(webhook.connect().await.unwrap());
    let body = vec![b' '; 10 << 20];
    let sending = tokio::spawn(async move {
        write.write_all(head(body.len()).as_bytes()).await?;
        write.write_all(&body).await
    });
    let mut status = [0; 13];
    soon("the answer", read.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 413 ");
    drop(read);
    sending.abort();
    assert!(webhook.review_once().await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn many_clients_at_once_are_all_answered() {
    let settings = server::Settings {
        handshake_timeout: support::HANG,
        header_timeout: support::HANG,
        ..server::Settings::default()
    };
    let webhook = Webhook::start(patient(), settings).await;
    let answers = join_all((0..100).map(|_| webhook.review_once())).await;
    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200 ")));
    assert_eq!(webhook.admission.reviews.of(Decision::Gated), 100);
    until("no connection", || webhook.server.connections.get() == 0).await;
}

#[tokio::test]
async fn one_connection_too_many_is_closed_at_once_and_the_next_is_not() {
    let two = server::Settings { max_connections: 2, ..server::Settings::default() };
    let webhook = Webhook::start(admission::Settings::default(), two).await;
    let mut first = webhook.connect().await.unwrap();
    let second = webhook.connect().await.unwrap();
    closed(TcpStream::connect(webhook.address).await.unwrap()).await;
    assert_eq!(webhook.server.connections_refused.get(), 1);
    assert!(exchange(&mut first, &review(&pod())).await.unwrap().starts_with("HTTP/1.1 200 "));

    drop(second);
    until("a free place", || webhook.server.connections.get() == 1).await;
    assert!(webhook.review_once().await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn one_address_cannot_take_every_place() {
    let settings = server::Settings { max_connections_of_one: 1, ..server::Settings::default() };
    let webhook = Webhook::start(admission::Settings::default(), settings).await;
    let first = webhook.connect().await.unwrap();
    closed(TcpStream::connect(webhook.address).await.unwrap()).await;
    assert_eq!(webhook.server.connections_refused.get(), 1);

    let another = TcpSocket::new_v4().unwrap();
    another.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let _another = another.connect(webhook.address).await.unwrap();
    until("a place for another address", || webhook.server.connections.get() == 2).await;

    drop(first);
    until("a free place", || webhook.server.connections.get() == 1).await;
    assert!(webhook.review_once().await.starts_with("HTTP/1.1 200 "));
}

// ---- The end.

/// A request whose head and first half are sent, and are being worked on.
async fn half_sent(webhook: &Webhook) -> (tokio_rustls::client::TlsStream<TcpStream>, String) {
    let body = review(&pod()).to_string();
    let (first, second) = body.split_at(body.len() / 2);
    let mut stream = webhook.connect().await.unwrap();
    stream.write_all(head(body.len()).as_bytes()).await.unwrap();
    stream.write_all(first.as_bytes()).await.unwrap();
    until("the request", || webhook.admission.in_flight.get() == 1).await;
    (stream, second.to_owned())
}

fn patient() -> admission::Settings {
    admission::Settings { deadline: support::HANG, ..admission::Settings::default() }
}

#[tokio::test]
async fn draining_finishes_what_has_begun_and_takes_nothing_new() {
    let webhook = Webhook::start(patient(), server::Settings::default()).await;
    let (mut stream, rest) = half_sent(&webhook).await;
    let idle = webhook.connect().await.unwrap();
    until("both connections", || webhook.server.connections.get() == 2).await;
    webhook.shutdown.draining.cancel();
    closed(idle).await;
    until("a closed port", || std::net::TcpStream::connect(webhook.address).is_err()).await;
    assert!(!webhook.task.is_finished());

    stream.write_all(rest.as_bytes()).await.unwrap();
    let answer = answer(&mut stream).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    closed(stream).await;
    soon("the server's end", webhook.task).await.unwrap();
}

#[tokio::test]
async fn draining_says_goodbye_in_http_2_too() {
    let webhook = Webhook::start(patient(), server::Settings::default()).await;
    let stream = connect(webhook.address, &development_ca(), &["h2"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);

    // The body ends when we say so.
    let (more, rest) = futures::channel::mpsc::unbounded::<io::Result<hyper::body::Frame<Bytes>>>();
    let body = review(&pod()).to_string();
    let request = Request::post("https://localhost/mutate").header(header::CONTENT_TYPE, "application/json");
    let request = request.body(http_body_util::StreamBody::new(rest).boxed()).unwrap();
    let in_work = tokio::spawn(sender.send_request(request));
    until("the request", || webhook.admission.in_flight.get() == 1).await;

    webhook.shutdown.draining.cancel();
    more.unbounded_send(Ok(hyper::body::Frame::data(Bytes::from(body)))).unwrap();
    drop(more);
    let response = soon("the answer", in_work).await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(response.into_body().collect().await.unwrap());
    soon("the connection's end", connection).await.unwrap().unwrap();
    soon("the server's end", webhook.task).await.unwrap();
}

#[tokio::test]
async fn now_cuts_off_what_has_not_ended() {
    let webhook = Webhook::start(patient(), server::Settings::default()).await;
    let (stream, _rest) = half_sent(&webhook).await;
    webhook.shutdown.draining.cancel();
    webhook.shutdown.now.cancel();
    soon("the server's end", webhook.task).await.unwrap();
    closed(stream).await;
    assert_eq!(webhook.admission.in_flight.get(), 0);
}

// ---- The admin endpoints.

#[tokio::test]
async fn readiness_is_told_in_words_until_the_very_end() {
    let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
    let token = readiness.token("certificate");
    let registry = metrics::registry();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = admin::router(readiness.clone(), registry);
    let task = tokio::spawn(server::serve(
        listener,
        router,
        None,
        server::Settings::default(),
        ServerMetrics::default(),
        shutdown.clone(),
    ));
    let get = async |path: &str| {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get(path).header(header::HOST, "localhost").body(Full::<Bytes>::default()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    };
    assert_eq!(get("/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(get("/readyz").await, (503, "waiting for: certificate\n".to_owned()));
    drop(token);
    assert_eq!(get("/readyz").await, (200, "ok\n".to_owned()));
    readiness.stop();
    assert_eq!(get("/readyz").await, (503, "stopping\n".to_owned()));
    assert_eq!(get("/livez").await, (200, "ok\n".to_owned()));
    assert!(get("/metrics").await.1.contains("kickstand_build_info{"));
    shutdown.draining.cancel();
    soon("the server's end", task).await.unwrap();
}
