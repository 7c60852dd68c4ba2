use serde_json::json;

use crate::Rig;
use crate::support::objects::{gated_pod, judged, namespace, running, sidecar_ready};
use crate::support::{FakeApi, at};

fn opened(api: &FakeApi, pod: &str) -> bool {
    api.get("pods", pod).is_some_and(|pod| pod["metadata"]["annotations"]["kickstand.dev/ready"].is_string())
}

fn held() -> FakeApi {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    api.put(gated_pod("pod", "run"));
    api
}

#[tokio::test(start_paused = true)]
async fn the_gate_opens_when_the_last_sidecar_is_ready() {
    let api = held();
    let rig = Rig::leading(&api).await;
    rig.settle(20).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());

    api.change("pods", "pod", sidecar_ready);
    api.until("the gate is open", |api| opened(api, "pod")).await;
    api.until("it is said", |api| api.has_event("KickstandGateOpened")).await;
    let annotations = &api.get("pods", "pod").unwrap()["metadata"]["annotations"];
    assert_eq!(annotations["somebody.example/else"], "kept");
    let opened_at = annotations["kickstand.dev/ready"].clone();
    rig.settle(600).await;
    let annotations = &api.get("pods", "pod").unwrap()["metadata"]["annotations"];
    assert_eq!(annotations["kickstand.dev/ready"], opened_at);
    assert!(annotations["kickstand.dev/nudged"].is_string(), "the kubelet may have lost the opening: {annotations}");
    assert_eq!(api.writes().len(), 2, "{:?}", api.writes());
    assert_eq!(api.events().len(), 1);
    assert_eq!(rig.metric("kickstand_gate_open_delay_seconds_count"), 1);
    assert_eq!(rig.metric("kickstand_controller_gates_shut"), 0);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_gate_is_not_opened_twice_because_the_watch_is_slow() {
    let api = held();
    let rig = Rig::leading(&api).await;
    api.change("pods", "pod", sidecar_ready);
    api.hold_back("pods");
    api.until("the gate is open", |api| opened(api, "pod")).await;
    api.change("taskruns", "run", |run| run["metadata"]["labels"] = json!({ "a": "b" }));
    rig.settle(60).await;
    assert_eq!(api.writes().len(), 1, "{:?}", api.writes());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_annotations_gets_one_and_keeps_what_came_meanwhile() {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    let mut pod = gated_pod("pod", "run");
    pod["metadata"].as_object_mut().unwrap().remove("annotations");
    api.put(pod);
    let rig = Rig::leading(&api).await;
    // The watch shows the pod ready, and does not show yet that it was annotated since.
    api.hold_back("pods");
    api.change("pods", "pod", |pod| pod["metadata"]["annotations"] = json!({ "a": "b" }));
    api.show("pods");
    api.change("pods", "pod", sidecar_ready);
    api.until("the gate is open", |api| opened(api, "pod")).await;
    assert_eq!(api.get("pods", "pod").unwrap()["metadata"]["annotations"]["a"], "b");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_holds_a_gate_is_said_once_at_each_time() {
    let api = held();
    let rig = Rig::leading(&api).await;
    rig.settle(590 - 10).await;
    let held = api.events().into_iter().filter(|(reason, _)| reason == "KickstandGateHeld").count();
    assert_eq!(held, 2, "{:?}", api.events());
    assert!(
        api.events()[0].1.contains("sidecar-db runs, but its readinessProbe (tcpSocket :5432)"),
        "{:?}",
        api.events()
    );
    assert!(api.writes().is_empty());
    rig.stop().await;

    // Another replica finds that it was said.
    let rig = Rig::leading(&api).await;
    rig.settle(10).await;
    assert_eq!(api.events().len(), held);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn opting_a_namespace_out_releases_its_pods() {
    let api = held();
    let rig = Rig::leading(&api).await;
    rig.settle(20).await;
    assert!(!opened(&api, "pod"));
    api.put(namespace("ci", true));
    api.until("the gate is open", |api| opened(api, "pod")).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_opted_out_before_the_start_is_never_touched() {
    let api = FakeApi::new();
    api.put(namespace("ci", true));
    api.put(judged("run", "pod", true, -3));
    api.put(crate::support::objects::done_pod("pod", "run", -5));
    let rig = Rig::leading(&api).await;
    rig.settle(600).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    assert!(api.events().is_empty());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_pod_whose_run_is_over_is_ended_and_never_opened() {
    let api = held();
    let rig = Rig::leading(&api).await;
    api.put(judged("run", "pod", false, 0));
    api.until("the pod is ended", |api| api.get("pods", "pod").unwrap()["spec"]["activeDeadlineSeconds"] == 1).await;
    assert!(!opened(&api, "pod"));
    api.until("it is said", |api| api.has_event("KickstandGateClosed")).await;
    rig.stop().await;
}

/// The first attempt failed, the second is held, and the watch on TaskRuns still shows the first one's failure.
#[tokio::test(start_paused = true)]
async fn a_retried_attempt_is_not_ended_by_its_predecessors_verdict() {
    let api = FakeApi::new();
    let mut first = gated_pod("first", "run");
    first["status"]["phase"] = "Failed".into();
    api.put(first);
    api.put(judged("run", "first", false, -2));
    let rig = Rig::leading(&api).await;

    api.hold_back("taskruns");
    let mut retried = running("run", "second");
    retried["status"]["retriesStatus"] = json!([{ "podName": "first", "completionTime": at(-2) }]);
    api.put(retried);
    api.put(gated_pod("second", "run"));
    rig.settle(60).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());

    // Its gate opens all the same: what the cache says is not believed.
    api.change("pods", "second", sidecar_ready);
    api.until("the gate is open", |api| opened(api, "second")).await;
    api.show("taskruns");
    rig.settle(60).await;
    let nudged = |pod: &serde_json::Value| pod["metadata"]["annotations"]["kickstand.dev/nudged"].is_string();
    assert!(api.get("pods", "second").is_some_and(|pod| nudged(&pod)));
    assert_eq!(api.writes().len(), 2, "{:?}", api.writes());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_opening_is_said_once_and_tried_again() {
    let api = held();
    api.change("pods", "pod", sidecar_ready);
    api.fail("PATCH", "/pods/", 403, "Forbidden", "pods \"pod\" is forbidden", 3);
    let rig = Rig::leading(&api).await;
    api.until("the gate is open", |api| opened(api, "pod")).await;
    let refused = api.events().into_iter().filter(|(_, note)| note.contains("refused to have the gate opened")).count();
    assert_eq!(refused, 1, "{:?}", api.events());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_webhook_is_told_where_gates_cannot_be_opened_until_one_can() {
    let api = held();
    api.change("pods", "pod", sidecar_ready);
    api.fail("PATCH", "/pods/", 400, "BadRequest", "admission webhook \"x\" denied the request: no", 100_000);
    let rig = Rig::leading(&api).await;
    api.until("it is told", |_| rig.facts.borrow().refuses_gates("ci")).await;
    api.recover();
    api.until("the gate is open", |api| opened(api, "pod")).await;
    api.until("it is told", |_| !rig.facts.borrow().refuses_gates("ci")).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_in_pages_on_an_old_server_and_in_named_namespaces_does_as_well() {
    let api = held();
    api.minor_version(30);
    let mut elsewhere = gated_pod("elsewhere", "run");
    elsewhere["metadata"]["namespace"] = "other".into();
    sidecar_ready(&mut elsewhere);
    api.put(elsewhere);
    let rig = Rig::start(&api, true, &["ci", "more"]).await;
    api.change("pods", "pod", sidecar_ready);
    api.until("the gate is open", |api| opened(api, "pod")).await;
    rig.settle(60).await;
    assert!(!opened(&api, "elsewhere"));
    assert!(api.calls().iter().all(|call| call.path != "/api/v1/namespaces" && call.path != "/api/v1/pods"));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_stream_lists_is_asked_for_pages() {
    let api = held();
    api.fail("GET", "/api/v1/pods", 422, "Invalid", "sendInitialEvents is forbidden", 1);
    api.change("pods", "pod", sidecar_ready);
    let rig = Rig::leading(&api).await;
    api.until("the gate is open", |api| opened(api, "pod")).await;
    assert_eq!(rig.metric("kickstand_controller_watch_errors_total{resource=\"pods\"}"), 0);
    rig.stop().await;
}
