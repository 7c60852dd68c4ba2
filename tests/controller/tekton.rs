use crate::Rig;
use crate::support::FakeApi;
use crate::support::objects::{NOP, done_pod, gated_pod, judged, running, sidecar_ready};

fn stopped(api: &FakeApi) -> bool {
    api.get("pods", "pod").unwrap()["spec"]["containers"][1]["image"] == NOP
}

fn done() -> FakeApi {
    let api = FakeApi::new();
    api.put(judged("run", "pod", true, -2));
    api.put(done_pod("pod", "run", -3));
    api
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_tekton_is_no_error_and_installing_it_is_noticed() {
    let api = done();
    api.serve_tekton(&[]);
    // Ready all the same.
    let rig = Rig::leading(&api).await;
    rig.settle(3600).await;
    assert!(api.writes().is_empty(), "not seen is not gone: {:?}", api.writes());
    let asked = api.calls().iter().filter(|call| call.path.starts_with("/apis/tekton.dev/")).count();
    assert!(asked < 300, "a hot loop: {asked}");

    api.serve_tekton(&["v1"]);
    api.until("the sidecar is stopped", stopped).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn gates_open_without_tekton_too() {
    let api = FakeApi::new();
    api.serve_tekton(&[]);
    let mut pod = gated_pod("pod", "run");
    sidecar_ready(&mut pod);
    api.put(pod);
    let rig = Rig::leading(&api).await;
    api.until("the gate is open", |api| api.has_event("KickstandGateOpened")).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_tekton_is_read_in_v1beta1() {
    let api = done();
    api.serve_tekton(&["v1beta1"]);
    let rig = Rig::leading(&api).await;
    api.until("the sidecar is stopped", stopped).await;
    assert!(api.calls().iter().any(|call| call.path.ends_with("/v1beta1/namespaces/ci/taskruns/run")));
    rig.stop().await;
}

/// The version that is followed is no longer served: every live read would be a 404.
#[tokio::test(start_paused = true)]
async fn a_version_that_goes_is_no_deleted_task_run() {
    let api = FakeApi::new();
    api.serve_tekton(&["v1beta1"]);
    api.put(running("run", "pod"));
    api.put(done_pod("pod", "run", -3));
    let rig = Rig::leading(&api).await;
    api.serve_tekton(&["v1"]);
    api.put(running("run", "pod"));
    rig.settle(600).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());

    api.put(judged("run", "pod", true, 600));
    api.until("the sidecar is stopped", stopped).await;
    rig.stop().await;
}

/// The same, before the watch knows: the answer is that there is no such resource, not that there is no such TaskRun.
#[tokio::test(start_paused = true)]
async fn a_live_read_in_a_version_that_is_gone_finds_nothing_out() {
    let api = FakeApi::new();
    api.serve_tekton(&["v1beta1"]);
    let rig = Rig::leading(&api).await;
    api.serve_tekton_silently(&["v1"]);
    api.hold_back("taskruns");
    api.put(running("run", "pod"));
    api.put(done_pod("pod", "run", -3));
    rig.settle(200).await;
    assert!(rig.metric("kickstand_controller_verdict_reads_total{result=\"unanswered\"}") > 0);
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn task_runs_that_may_not_be_watched_are_no_verdict_and_no_reason_to_be_unready() {
    let api = done();
    api.fail("GET", "/tekton.dev/v1/taskruns", 403, "Forbidden", "taskruns is forbidden", 100_000);
    let rig = Rig::leading(&api).await;
    rig.settle(600).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    assert!(rig.metric("kickstand_controller_watch_errors_total{resource=\"taskruns\"}") > 0);
    api.recover();
    api.until("the sidecar is stopped", stopped).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_permission_that_is_taken_away_and_given_back_is_noticed() {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    api.put(done_pod("pod", "run", -3));
    let rig = Rig::leading(&api).await;
    api.fail("GET", "/tekton.dev/v1/taskruns", 403, "Forbidden", "taskruns is forbidden", 100_000);
    api.cut("taskruns");
    rig.settle(60).await;
    api.put(judged("run", "pod", true, 60));
    rig.settle(60).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    api.recover();
    api.until("the sidecar is stopped", stopped).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_opt_out_survives_a_watch_that_breaks_off() {
    let api = done();
    api.put(crate::support::objects::namespace("ci", true));
    let rig = Rig::leading(&api).await;
    for plural in ["namespaces", "pods", "taskruns"] {
        api.cut(plural);
    }
    rig.settle(60).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());
    api.put(crate::support::objects::namespace("ci", false));
    api.until("the sidecar is stopped", stopped).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_list_of_task_runs_it_is_not_ready_and_does_nothing() {
    let api = done();
    api.put(crate::support::objects::namespace("ci", false));
    api.fail("GET", "/tekton.dev/v1/taskruns", 500, "InternalError", "etcd is away", 10);
    let rig = Rig::unready(&api, true, &[]);
    rig.settle(3).await;
    assert!(!rig.is_ready());
    assert!(api.writes().is_empty());
    api.until("it is ready", |_| rig.is_ready()).await;
    api.until("the sidecar is stopped", stopped).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn namespaces_that_may_not_be_read_count_as_not_opted_out() {
    let api = done();
    api.fail("GET", "/api/v1/namespaces", 403, "Forbidden", "namespaces is forbidden", 100_000);
    let rig = Rig::leading(&api).await;
    api.until("the sidecar is stopped", stopped).await;
    rig.stop().await;
}
