use axum::http::{HeaderValue, Request, Response};
use rstest::rstest;
use tower_test::mock::{self, Handle};

use super::*;
use crate::pod::contract::READY;

type Calls = Handle<Request<Body>, Response<Body>>;

fn settings() -> Settings {
    Settings {
        namespace: "ci".to_owned(),
        annotations: BTreeMap::from([("a.example/b".to_owned(), "c".to_owned())]),
        image: "nop".to_owned(),
        times: 3,
        wait: Duration::ZERO,
        home: "kickstand-system".to_owned(),
        lease: "kickstand-controller".to_owned(),
        output: Output::Text,
    }
}

fn status(code: u16, kind: &str, message: &str) -> (u16, Value) {
    (
        code,
        json!({ "kind": "Status", "status": "Failure", "message": message, "code": code, "details": { "kind": kind } }),
    )
}

/// Answers dry runs by `pods`, and everything else with "forbidden"; returns what was sent to pods.
async fn serve(mut calls: Calls, pods: impl Fn(usize, Value) -> (u16, Value)) -> Vec<Value> {
    let mut seen = Vec::new();
    while let Some((request, send)) = calls.next_request().await {
        let (head, body) = request.into_parts();
        let (code, answer) = if head.method == "POST" {
            assert_eq!(head.uri.path(), "/api/v1/namespaces/ci/pods");
            assert!(head.uri.query().unwrap().contains("dryRun=All"), "{}", head.uri);
            let bytes = to_bytes(axum::body::Body::new(body), MOST_BYTES).await.unwrap();
            let pod: Value = serde_json::from_slice(&bytes).unwrap();
            seen.push(pod.clone());
            pods(seen.len(), pod)
        } else {
            status(403, "", "you may not")
        };
        let mut response = Response::builder().status(code);
        if code == 201 {
            let warning = "299 - \"kickstand: the first step does not wait for its sidecars: \\\"x\\\" ≥ y\"";
            response = response.header("warning", HeaderValue::from_bytes(warning.as_bytes()).unwrap());
        }
        send.send_response(response.body(Body::from(answer.to_string().into_bytes())).unwrap());
    }
    seen
}

async fn examined(
    settings: &Settings,
    pods: impl Fn(usize, Value) -> (u16, Value) + Send + 'static,
) -> (Result<bool, Error>, String, String, Vec<Value>) {
    let (service, calls) = mock::pair::<Request<Body>, Response<Body>>();
    let served = tokio::spawn(serve(calls, pods));
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let result = run(&Client::new(service, "default"), settings, &mut stdout, &mut stderr).await;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (result, text(stdout), text(stderr), served.await.unwrap())
}

/// As the webhook leaves it where it does not hold.
fn not_held(_: usize, mut pod: Value) -> (u16, Value) {
    pod["metadata"]["annotations"].as_object_mut().unwrap().shift_remove(READY);
    (201, pod)
}

#[tokio::test]
async fn what_the_webhook_warns_of_is_read_and_told() {
    let (result, stdout, _, seen) = examined(&settings(), not_held).await;
    assert!(!result.unwrap());
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0]["metadata"]["annotations"]["a.example/b"], "c");
    insta::assert_snapshot!(stdout);
}

#[tokio::test]
async fn json_says_the_same() {
    let settings = Settings { output: Output::Json, times: 1, ..settings() };
    let (result, stdout, _, _) = examined(&settings, not_held).await;
    assert!(!result.unwrap());
    insta::assert_snapshot!(stdout);
}

#[tokio::test]
async fn a_namespace_that_is_not_there_is_unusable_input() {
    let (result, stdout, _, _) =
        examined(&settings(), |_, _| status(404, "namespaces", "namespaces \"ci\" not found")).await;
    assert_eq!(
        result.unwrap_err().to_string(),
        "there is no namespace ci: nothing was tried. See `kubectl get namespaces`"
    );
    assert!(stdout.is_empty());
}

#[rstest]
#[case::refused(422, "the API server refuses the pod: no such thing")]
#[case::overloaded(429, "dry runs are not answered: no such thing")]
#[case::a_webhook_that_must_answer(500, "dry runs are not answered: no such thing")]
#[tokio::test]
async fn a_refusal_is_no_outage(#[case] code: u16, #[case] expected: &str) {
    let (result, stdout, _, _) = examined(&settings(), move |_, _| status(code, "pods", "no such thing")).await;
    assert!(!result.unwrap());
    assert!(stdout.contains(expected), "{stdout}");
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again_as_long_as_one_waits() {
    let settings = Settings { wait: Duration::from_secs(30), times: 1, ..settings() };
    let new = |count, pod| {
        let words = "pods \"x\" is forbidden: error looking up service account ci/default";
        if count < 3 { status(403, "pods", words) } else { not_held(count, pod) }
    };
    let (result, stdout, stderr, seen) = examined(&settings, new).await;
    assert!(!result.unwrap());
    assert_eq!(seen.len(), 3);
    assert_eq!(stderr.matches("not well yet, trying again: ").count(), 2, "{stderr}");
    assert!(!stdout.contains("service account"), "{stdout}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_silent_is_given_up_and_spoken_of_meanwhile() {
    let (service, mut calls) = mock::pair::<Request<Body>, Response<Body>>();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(call) = calls.next_request().await {
            kept.push(call);
        }
    });
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let result = run(&Client::new(service, "default"), &settings(), &mut stdout, &mut stderr).await;
    assert!(!result.unwrap());
    assert!(String::from_utf8(stderr).unwrap().contains("0 of 3 dry runs are answered after 5 s"));
    assert!(String::from_utf8(stdout).unwrap().contains("no answer in 30s"));
}

fn configuration(name: &str, webhook: &Value) -> MutatingWebhookConfiguration {
    let mut whole = json!({
        "rules": rules("CREATE", "", "pods"),
        "clientConfig": { "caBundle": "eA==" }, "sideEffects": "None", "admissionReviewVersions": ["v1"],
    });
    for (key, value) in webhook.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({ "metadata": { "name": name }, "webhooks": [whole] })).unwrap()
}

fn rules(operation: &str, group: &str, resource: &str) -> Value {
    json!([{ "operations": [operation], "apiGroups": [group], "apiVersions": ["v1"], "resources": [resource] }])
}

fn selecting(label: &str) -> Value {
    json!({ "matchExpressions": [{ "key": label, "operator": "Exists" }] })
}

#[test]
fn others_that_rewrite_this_pod_are_named_and_those_that_do_not_are_not() {
    let all = [
        configuration("injector", &json!({ "name": "a.example", "namespaceSelector": selecting("here") })),
        configuration("elsewhere", &json!({ "name": "b.example", "namespaceSelector": selecting("there") })),
        configuration("other-pods", &json!({ "name": "c.example", "objectSelector": selecting("app") })),
        configuration("jobs", &json!({ "name": "d.example", "rules": rules("CREATE", "batch", "jobs") })),
        configuration("everything", &json!({ "name": "e.example", "rules": rules("*", "*", "*/*") })),
        configuration("0-kickstand", &json!({ "name": "all.early.kickstand.dev" })),
    ];
    let namespace = Labels::from([("here".to_owned(), "yes".to_owned())]);
    let found = hooks(&all, &namespace, &doctor::sample("nop", &BTreeMap::new()));
    assert_eq!(found, Hooks { ours: Ours::Missing, others: vec!["injector".to_owned(), "everything".to_owned()] });
}

#[rstest]
#[case::asks("here", "eA==", Ours::Asks)]
#[case::elsewhere("there", "eA==", Ours::Elsewhere)]
#[case::no_certificate("here", "", Ours::Untrusted)]
fn our_own_configuration_is_known_by_the_names_of_its_webhooks(
    #[case] label: &str,
    #[case] bundle: &str,
    #[case] expected: Ours,
) {
    let name = "labelled.webhook.kickstand.dev";
    let client = json!({ "caBundle": bundle });
    let ours = configuration(
        "zz-mine",
        &json!({ "name": name, "namespaceSelector": selecting(label), "clientConfig": client }),
    );
    let namespace = Labels::from([("here".to_owned(), "yes".to_owned())]);
    assert_eq!(hooks(&[ours], &namespace, &doctor::sample("nop", &BTreeMap::new())).ours, expected);
}
