use serde_json::Value;

use crate::Rig;
use crate::support::objects::{NOP, done_pod, gated_pod, judge, judged, running, saw_steps_end, steps_done};
use crate::support::{FakeApi, at};

fn image(api: &FakeApi, pod: &str, container: usize) -> String {
    let pod = api.get("pods", pod).unwrap();
    pod["spec"]["containers"][container]["image"].as_str().unwrap().to_owned()
}

fn ended(api: &FakeApi, pod: &str) -> bool {
    api.get("pods", pod).unwrap()["spec"]["activeDeadlineSeconds"] == 1
}

/// Its steps are done, and its run succeeded.
fn done() -> FakeApi {
    let api = FakeApi::new();
    api.put(judged("run", "pod", true, -2));
    api.put(done_pod("pod", "run", -3));
    api
}

fn reads(api: &FakeApi) -> usize {
    api.calls().iter().filter(|call| call.path.ends_with("/taskruns/run")).count()
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_stopped_once_their_run_is_judged_and_a_live_read_says_so_too() {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    let mut pod = done_pod("pod", "run", -3);
    pod["status"]["containerStatuses"][1]["state"] = serde_json::json!({ "running": { "startedAt": at(-9) } });
    api.put(pod);
    let rig = Rig::leading(&api).await;
    api.change("pods", "pod", |pod| steps_done(pod, 1));
    rig.settle(60).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    assert_eq!(reads(&api), 0);

    api.change("taskruns", "run", |run| judge(run, true, 60));
    api.until("the sidecar is stopped", |api| image(api, "pod", 1) == NOP).await;
    assert_eq!(reads(&api), 1);
    api.until("it is said", |api| api.has_event("KickstandSidecarsStopped")).await;
    let original = api.get("pods", "pod").unwrap()["metadata"]["annotations"]["kickstand.dev/original-images"].clone();
    assert!(original.as_str().unwrap().contains("registry.example/postgres:17"), "{original}");
    api.change("pods", "pod", |pod| pod["status"]["phase"] = "Succeeded".into());
    rig.settle(600).await;
    assert_eq!(api.writes().len(), 1, "{:?}", api.writes());
    assert_eq!(rig.metric("kickstand_pod_end_delay_seconds_count"), 1);
    assert_eq!(rig.metric("kickstand_controller_pods"), 0);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_left_running_before_the_start_is_stopped() {
    let api = done();
    let rig = Rig::leading(&api).await;
    api.until("the sidecar is stopped", |api| image(api, "pod", 1) == NOP).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_task_run_is_deleted_is_stopped_when_a_live_read_finds_nothing() {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    api.put(done_pod("pod", "run", -3));
    let rig = Rig::leading(&api).await;
    api.remove("taskruns", "run");
    rig.settle(5).await;
    assert!(api.writes().is_empty(), "too early: {:?}", api.writes());
    api.until("the sidecar is stopped", |api| image(api, "pod", 1) == NOP).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_verdict_that_the_live_read_does_not_confirm_stops_nothing() {
    // The watch shows a verdict that is no longer there: it was of the attempt before.
    let api = done();
    let rig = Rig::start(&api, false, &[]).await;
    api.hold_back("taskruns");
    api.put(running("run", "pod"));
    rig.leader.send_replace(true);
    rig.settle(600).await;
    assert!(reads(&api) > 0);
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn task_runs_that_may_not_be_read_live_are_no_verdict() {
    let api = done();
    api.fail("GET", "/taskruns/run", 403, "Forbidden", "taskruns is forbidden", 1000);
    let rig = Rig::leading(&api).await;
    rig.settle(600).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_live_read_that_fails_is_tried_again() {
    let api = done();
    api.fail("GET", "/taskruns/run", 500, "InternalError", "etcd is away", 3);
    let rig = Rig::leading(&api).await;
    api.until("the sidecar is stopped", |api| image(api, "pod", 1) == NOP).await;
    assert_eq!(reads(&api), 4);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_refused_is_said_and_the_pod_is_ended() {
    let api = done();
    api.fail("PATCH", "/pods/pod", 403, "Forbidden", "denied by policy require-digests", 1);
    let rig = Rig::leading(&api).await;
    api.until("the pod is ended", |api| ended(api, "pod")).await;
    api.until("it is said", |api| api.has_event("KickstandPodEnded")).await;
    let refused = api.events().into_iter().find(|(reason, _)| reason == "KickstandStopRefused").unwrap().1;
    assert!(refused.contains("sidecar-db") && refused.contains("require-digests"), "{refused}");
    assert_eq!(image(&api, "pod", 1), "registry.example/postgres:17");
    assert_eq!(rig.metric("kickstand_controller_refused_stops_total{code=\"forbidden\"}"), 1);
    rig.stop().await;
}

/// A native sidecar still runs, and Tekton, once it has seen the steps end, waits for it: the classic one is stopped
/// before the verdict.
fn deadlock() -> FakeApi {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    let mut pod = done_pod("pod", "run", -30);
    pod["spec"]["initContainers"] =
        serde_json::json!([{ "name": "istio-proxy", "image": "x", "restartPolicy": "Always" }]);
    pod["status"]["initContainerStatuses"] =
        serde_json::json!([{ "name": "istio-proxy", "ready": true, "state": { "running": { "startedAt": at(-9) } } }]);
    api.put(pod);
    api
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_tekton_is_not_taken_for_a_run_that_waits_for_its_own_sidecar() {
    let api = deadlock();
    let rig = Rig::leading(&api).await;
    rig.settle(3600).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());

    // It is back, and has seen the steps end: now the verdict waits for us.
    api.change("taskruns", "run", saw_steps_end);
    api.until("the sidecar is stopped", |api| image(api, "pod", 1) == NOP).await;
    assert_eq!(reads(&api), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn that_a_verdict_is_withheld_is_confirmed_by_a_live_read() {
    let api = deadlock();
    api.change("taskruns", "run", saw_steps_end);
    let rig = Rig::start(&api, false, &[]).await;
    api.hold_back("taskruns");
    // The steps were another attempt's.
    api.put(running("run", "pod"));
    rig.leader.send_replace(true);
    rig.settle(600).await;
    assert!(reads(&api) > 0);
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_verdict_a_refused_stop_is_only_said() {
    let api = deadlock();
    api.change("taskruns", "run", saw_steps_end);
    api.fail("PATCH", "/pods/pod", 422, "Invalid", "Pod \"pod\" is invalid: spec: Forbidden", 1000);
    let rig = Rig::leading(&api).await;
    api.until("it is said", |api| api.has_event("KickstandStopRefused")).await;
    rig.settle(1000).await;
    let written = api.writes();
    assert!(written.iter().all(|call| !call.body.to_string().contains("activeDeadlineSeconds")), "{written:?}");
    assert!(written.len() < 6, "asked again and again: {written:?}");
    assert_eq!(api.events().len(), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_throttled_stop_is_done_later() {
    let api = done();
    api.fail("PATCH", "/pods/pod", 429, "TooManyRequests", "slow down", 7);
    let rig = Rig::leading(&api).await;
    api.until("the sidecar is stopped", |api| image(api, "pod", 1) == NOP).await;
    assert_eq!(api.writes().len(), 8);
    assert!(!api.has_event("KickstandStopRefused"));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_test_that_fails_means_look_again() {
    let api = done();
    let rig = Rig::start(&api, false, &[]).await;
    // Somebody else stopped it, and the watch does not show it yet.
    api.hold_back("pods");
    api.change("pods", "pod", |pod| pod["spec"]["containers"][1]["image"] = "registry.example/other:2".into());
    rig.leader.send_replace(true);
    api.until("a patch was tried", |api| !api.writes().is_empty()).await;
    rig.settle(5).await;
    assert_eq!(image(&api, "pod", 1), "registry.example/other:2");
    assert!(api.events().is_empty(), "{:?}", api.events());
    assert!(rig.metric("kickstand_controller_actions_total{kind=\"stop\",result=\"moved_on\"}") > 0);

    // Once it does, the new one is stopped.
    api.show("pods");
    api.until("the sidecar is stopped", |api| image(api, "pod", 1) == NOP).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_replaced_by_another_of_its_name_is_not_touched() {
    let api = done();
    let rig = Rig::start(&api, false, &[]).await;
    api.hold_back("pods");
    let mut other = gated_pod("pod", "run");
    other["metadata"]["uid"] = "another".into();
    api.put(other.clone());
    rig.leader.send_replace(true);
    api.until("a patch was tried", |api| !api.writes().is_empty()).await;
    rig.settle(5).await;
    assert_eq!(image(&api, "pod", 1), "registry.example/postgres:17");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn helpers_go_before_the_proxy() {
    let api = FakeApi::new();
    api.put(judged("run", "pod", true, -2));
    let mut pod = done_pod("pod", "run", -3);
    let proxy: Value = serde_json::json!({ "name": "istio-proxy", "image": "registry.example/proxy:1" });
    pod["spec"]["containers"].as_array_mut().unwrap().push(proxy);
    let running =
        serde_json::json!({ "name": "istio-proxy", "ready": true, "state": { "running": { "startedAt": at(-9) } } });
    pod["status"]["containerStatuses"].as_array_mut().unwrap().push(running);
    api.put(pod);
    let rig = Rig::leading(&api).await;
    api.until("the helper is stopped", |api| image(api, "pod", 1) == NOP).await;
    rig.settle(20).await;
    assert_eq!(image(&api, "pod", 2), "registry.example/proxy:1");
    api.change("pods", "pod", |pod| {
        let end = serde_json::json!({ "terminated": { "exitCode": 0, "finishedAt": at(20) } });
        pod["status"]["containerStatuses"][0]["state"] = end;
    });
    api.until("the proxy is stopped", |api| image(api, "pod", 2) == "kickstand.dev/Ended").await;
    let stops = api.events().into_iter().filter(|(reason, _)| reason == "KickstandSidecarsStopped").count();
    assert_eq!(stops, 2, "each with its own words: {:?}", api.events());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_steps_to_do_is_left_alone() {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    let mut pod = done_pod("pod", "run", -3);
    pod["status"]["containerStatuses"][1]["state"] = serde_json::json!({ "running": { "startedAt": at(-9) } });
    api.put(pod);
    let rig = Rig::leading(&api).await;
    rig.settle(3600).await;
    assert!(api.calls().iter().all(|call| !call.writes()), "{:?}", api.writes());
    api.change("pods", "pod", |pod| steps_done(pod, 3600));
    rig.settle(60).await;
    assert!(api.calls().iter().all(|call| !call.writes()), "{:?}", api.writes());
    rig.stop().await;
}
