use std::time::Duration;

use kickstand::release::{self, Error, Settings};
use serde_json::json;

use crate::support::objects::{done_pod, gated_pod, judged, namespace, running};
use crate::support::{self, FakeApi};

fn settings() -> Settings {
    Settings {
        webhook_configurations: ["zz-kickstand", "0-kickstand"].map(str::to_owned).into(),
        namespaces: Vec::new(),
        deadline: Duration::from_secs(60),
        now: support::now,
    }
}

fn opened(api: &FakeApi, pod: &str) -> bool {
    api.get("pods", pod).unwrap()["metadata"]["annotations"]["kickstand.dev/ready"].is_string()
}

#[tokio::test(start_paused = true)]
async fn every_gate_is_opened_but_those_of_runs_that_are_over() {
    let api = FakeApi::new();
    for name in ["zz-kickstand", "0-kickstand"] {
        api.put(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": name },
        }));
    }
    api.put(running("run", "held"));
    api.put(gated_pod("held", "run"));
    api.put(judged("over", "over", false, -5));
    api.put(gated_pod("over", "over"));
    api.put(gated_pod("orphan", "deleted"));
    // Not held, and none of its business on the way out.
    api.put(judged("done", "done", true, -5));
    api.put(done_pod("done", "done", -6));
    // Ended.
    let mut ended = gated_pod("ended", "run");
    ended["status"]["phase"] = "Failed".into();
    api.put(ended);

    release::run(api.client(), settings()).await.unwrap();
    for name in ["zz-kickstand", "0-kickstand"] {
        assert!(api.get("mutatingwebhookconfigurations", name).is_none(), "{name}");
    }
    assert!(opened(&api, "held") && !opened(&api, "over") && !opened(&api, "orphan") && !opened(&api, "ended"));
    for pod in ["over", "orphan"] {
        assert_eq!(api.get("pods", pod).unwrap()["spec"]["activeDeadlineSeconds"], 1, "{pod}");
    }
    assert_eq!(api.get("pods", "done").unwrap()["spec"]["containers"][1]["image"], "registry.example/postgres:17");
    let deleted = api.calls().iter().rposition(|call| call.method == "DELETE").unwrap();
    let patched = api.calls().iter().position(|call| call.method == "PATCH").unwrap();
    assert!(deleted < patched, "first nobody new is held");
}

#[tokio::test(start_paused = true)]
async fn without_tekton_everything_is_let_go() {
    let api = FakeApi::new();
    api.serve_tekton(&[]);
    api.put(gated_pod("held", "run"));
    release::run(api.client(), Settings { webhook_configurations: Vec::new(), ..settings() }).await.unwrap();
    assert!(opened(&api, "held"));
    assert!(api.calls().iter().all(|call| call.method != "DELETE"));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_not_there_is_an_error_where_that_can_be_known() {
    let api = FakeApi::new();
    api.put(namespace("ci", false));
    let of =
        |names: &[&str]| Settings { namespaces: names.iter().map(|&name| name.to_owned()).collect(), ..settings() };
    let error = release::run(api.client(), of(&["ci", "ic"])).await.unwrap_err();
    assert!(error.to_string().contains("there is no namespace ic"), "{error}");
    assert!(api.calls().iter().all(|call| !call.writes()), "not even the webhook's configuration is deleted");

    api.fail("GET", "/api/v1/namespaces/ic", 403, "Forbidden", "namespaces is forbidden", 1);
    release::run(api.client(), of(&["ci", "ic"])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_opened_is_named() {
    let api = FakeApi::new();
    api.put(running("run", "held"));
    api.put(gated_pod("held", "run"));
    api.fail("PATCH", "/pods/held", 403, "Forbidden", "pods is forbidden", 100_000);
    let error = release::run(api.client(), settings()).await.unwrap_err();
    assert!(matches!(&error, Error::StillShut(pods) if *pods == ["ci/held"]), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_admitted_late_is_released_too() {
    let api = FakeApi::new();
    api.put(running("run", "late"));
    let later = api.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        later.put(gated_pod("late", "run"));
    });
    release::run(api.client(), settings()).await.unwrap();
    assert!(opened(&api, "late"));
}
