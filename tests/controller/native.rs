//! What the leader says of native sidecars, on its Lease.

use kickstand::leader::Candidate;
use kickstand::pod::facts::{Facts, Native};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::Rig;
use crate::leading::{settings, told};
use crate::support::objects::{gated_pod, node, refused_native, running, sidecar_ready, stuck_pod};
use crate::support::{self, FakeApi};

const LEASE: &str = "kickstand-controller";

/// A controller with its part in the election.
struct Replica {
    rig: Rig,
    election: JoinHandle<()>,
    over: CancellationToken,
}

impl Replica {
    async fn start(api: &FakeApi, identity: &str) -> Self {
        let rig = Rig::start(api, false, &[]).await;
        let (candidate, mut leads) =
            Candidate::new(api.client(), settings(identity), rig.sees.clone(), rig.facts.clone());
        let (over, leader) = (CancellationToken::new(), rig.leader.clone());
        let election = tokio::spawn(candidate.run(over.clone()));
        tokio::spawn(async move {
            while leads.changed().await.is_ok() {
                leader.send_replace(*leads.borrow_and_update());
            }
        });
        api.until("somebody leads", |_| *rig.leader.borrow()).await;
        Self { rig, election, over }
    }

    async fn stop(self) {
        self.rig.stop().await;
        self.over.cancel();
        self.election.await.unwrap();
    }
}

fn facts(api: &FakeApi) -> Facts {
    Facts::read(told(api).as_deref())
}

fn says(api: &FakeApi) -> Option<Native> {
    facts(api).native
}

fn impossible(why: &str) -> Native {
    Native::Impossible(why.to_owned())
}

#[tokio::test(start_paused = true)]
async fn every_node_counts_and_is_named_and_no_longer_when_it_has_left() {
    let api = FakeApi::new();
    api.put(node("a", "v1.34.1"));
    let replica = Replica::start(&api, "one").await;
    let rig = &replica.rig;
    rig.settle(2).await;
    assert_eq!(says(&api), Some(Native::Possible));
    assert_eq!(rig.metric("kickstand_controller_native_possible"), 1);

    let mut old = node("b", "v1.30.2");
    old["spec"] = json!({ "unschedulable": true });
    api.put(old);
    rig.settle(2).await;
    assert_eq!(says(&api), Some(impossible("node b runs kubelet v1.30.2, and 1.33 is needed")));
    assert_eq!(rig.metric("kickstand_controller_native_possible"), 0);

    api.remove("nodes", "b");
    rig.settle(2).await;
    assert_eq!(says(&api), Some(Native::Possible));

    api.change("nodes", "a", |node| node["status"]["nodeInfo"]["operatingSystem"] = "windows".into());
    rig.settle(2).await;
    assert_eq!(says(&api), Some(impossible("node a runs Windows")));
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_api_server_counts_too_and_may_be_replaced() {
    let api = FakeApi::new();
    api.put(node("a", "v1.34.1"));
    api.minor_version(32);
    let replica = Replica::start(&api, "one").await;
    replica.rig.settle(2).await;
    assert_eq!(says(&api), Some(impossible("the API server runs 1.32, and 1.33 is needed")));
    api.minor_version(33);
    replica.rig.settle(62).await;
    assert_eq!(says(&api), Some(Native::Possible));
    // For a while, what it has said holds.
    api.fail("GET", "/version", 500, "InternalError", "", 100_000);
    replica.rig.settle(240).await;
    assert_eq!(says(&api), Some(Native::Possible));
    replica.rig.settle(240).await;
    assert_eq!(says(&api), None);
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn whoever_may_not_read_nodes_does_not_know_and_leads_all_the_same() {
    let api = FakeApi::new();
    api.fail("GET", "/nodes", 403, "Forbidden", "nodes is forbidden", 100_000);
    api.put(running("run", "pod"));
    api.put(gated_pod("pod", "run"));
    let replica = Replica::start(&api, "one").await;
    api.change("pods", "pod", sidecar_ready);
    api.until("the gate is open", |api| api.has_event("KickstandGateOpened")).await;
    replica.rig.settle(600).await;
    assert_eq!(says(&api), None);
    assert!(*replica.rig.leader.borrow() && *replica.rig.sees.borrow());

    api.put(node("a", "v1.34.1"));
    api.recover();
    replica.rig.settle(15).await;
    assert_eq!(says(&api), Some(Native::Possible));
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_are_not_seen_for_a_while_say_nothing_any_more_and_cost_nobody_the_lead() {
    let api = FakeApi::new();
    api.put(node("a", "v1.34.1"));
    let replica = Replica::start(&api, "one").await;
    replica.rig.settle(2).await;
    api.fail("GET", "/nodes", 500, "InternalError", "etcd is away", 100_000);
    api.cut("nodes");
    replica.rig.settle(10).await;
    assert_eq!(says(&api), Some(Native::Possible), "not for a moment");
    replica.rig.settle(30).await;
    assert_eq!(says(&api), None);
    assert!(*replica.rig.leader.borrow());
    api.recover();
    replica.rig.settle(15).await;
    assert_eq!(says(&api), Some(Native::Possible));
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_successor_says_what_it_sees_itself_and_keeps_what_was_refused() {
    let api = FakeApi::new();
    api.put(node("a", "v1.30.2"));
    let one = Replica::start(&api, "one").await;
    api.put(refused_native("run", "ci", 1));
    one.rig.settle(2).await;
    assert!(says(&api) != Some(Native::Possible) && facts(&api).native_refused.contains_key("ci"));
    one.stop().await;
    api.remove("nodes", "a");
    api.put(node("b", "v1.34.1"));
    let two = Replica::start(&api, "two").await;
    two.rig.settle(2).await;
    assert_eq!(says(&api), Some(Native::Possible));
    assert!(facts(&api).native("ci", None).is_err() && facts(&api).native("cd", None).is_ok());
    assert_eq!(two.rig.metric("kickstand_controller_native_refused_namespaces"), 1);
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_switches_a_namespace_off_for_an_hour_and_counts_once() {
    let api = FakeApi::new();
    api.put(node("a", "v1.34.1"));
    let replica = Replica::start(&api, "one").await;
    api.put(refused_native("run", "ci", 1));
    replica.rig.settle(2).await;
    assert!(facts(&api).native("ci", None).is_err() && facts(&api).native("cd", None).is_ok());
    // It is shown again, by a change and by a new list.
    replica.rig.settle(1800).await;
    api.change("taskruns", "run", |run| run["metadata"]["labels"] = json!({ "a": "b" }));
    api.serve_tekton(&["v1beta1"]);
    replica.rig.settle(1830).await;
    assert_eq!(facts(&api).native("ci", None), Ok(()));
    assert_eq!(replica.rig.metric("kickstand_controller_native_refusals_total"), 1);
    assert_eq!(replica.rig.metric("kickstand_controller_native_refused_namespaces"), 0);
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_native_sidecar_cannot_be_started_is_deleted_once_the_webhook_knows() {
    let api = FakeApi::new();
    api.put(node("a", "v1.34.1"));
    api.put(running("run", "pod"));
    api.put(stuck_pod("pod", "run"));
    let replica = Replica::start(&api, "one").await;
    replica.rig.settle(5).await;
    assert!(facts(&api).native("ci", Some("uid-run")).is_err() && facts(&api).native("ci", Some("another")).is_ok());
    assert!(api.get("pods", "pod").is_some(), "not before every webhook has read that");
    replica.rig.settle(5).await;
    assert_eq!(api.get("pods", "pod"), None);
    assert!(api.has_event("KickstandPodReplaced"));
    assert_eq!(replica.rig.metric(r#"kickstand_controller_actions_total{kind="replace",result="done"}"#), 1);

    // Tekton makes it anew; if that one is no better, it stays.
    let mut again = stuck_pod("pod", "run");
    again["metadata"]["uid"] = "uid-again".into();
    api.put(again);
    replica.rig.settle(60).await;
    assert!(api.get("pods", "pod").is_some() && api.has_event("KickstandGateHeld"));
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_may_not_delete_pods_says_so() {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    api.put(stuck_pod("pod", "run"));
    api.fail("DELETE", "/pods/pod", 403, "Forbidden", "pods is forbidden", 100);
    let replica = Replica::start(&api, "one").await;
    replica.rig.settle(30).await;
    assert!(api.get("pods", "pod").is_some() && api.has_event("KickstandStopRefused"));
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn three_namespaces_switch_it_off_until_an_operator_allows_it_on_the_lease() {
    let api = FakeApi::new();
    api.put(node("a", "v1.34.1"));
    let replica = Replica::start(&api, "one").await;
    for namespace in ["a", "b", "c"] {
        api.put(refused_native(namespace, namespace, 1));
    }
    replica.rig.settle(2).await;
    assert!(facts(&api).native_refused_everywhere);
    assert_eq!(replica.rig.metric("kickstand_controller_native_refused_namespaces"), 3);
    assert_eq!(replica.rig.metric("kickstand_controller_native_possible"), 0);
    replica.rig.settle(2 * 3600).await;
    assert!(facts(&api).native("elsewhere", None).is_err(), "not by time");

    api.change("leases", LEASE, |lease| lease["metadata"]["annotations"]["kickstand.dev/allow-native"] = "no".into());
    replica.rig.settle(10).await;
    assert!(facts(&api).native_refused_everywhere, "only by the word");
    api.change("leases", LEASE, |lease| lease["metadata"]["annotations"]["kickstand.dev/allow-native"] = "true".into());
    replica.rig.settle(10).await;
    assert_eq!(facts(&api), Facts { native: Some(Native::Possible), ..Facts::default() });
    let annotations = api.get("leases", LEASE).unwrap()["metadata"]["annotations"].clone();
    assert_eq!(annotations.as_object().unwrap().keys().collect::<Vec<_>>(), ["kickstand.dev/facts"]);
    assert_eq!(replica.rig.metric("kickstand_controller_native_possible"), 1);
    replica.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_allowed_is_not_undone_by_refusals_of_before() {
    let api = FakeApi::new();
    api.put(node("a", "v1.34.1"));
    let one = Replica::start(&api, "one").await;
    for namespace in ["a", "b", "c"] {
        api.put(refused_native(namespace, namespace, 1));
    }
    one.rig.settle(120).await;
    api.change("leases", LEASE, |lease| lease["metadata"]["annotations"]["kickstand.dev/allow-native"] = "true".into());
    one.rig.settle(10).await;
    // Listed anew.
    api.serve_tekton(&["v1beta1"]);
    one.rig.settle(60).await;
    assert_eq!(facts(&api).native("a", None), Ok(()), "the same are shown again");
    one.stop().await;
    let two = Replica::start(&api, "two").await;
    two.rig.settle(60).await;
    assert_eq!(facts(&api).native("a", None), Ok(()), "a successor lists them");
    two.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_refusal_that_is_only_listed_changes_nothing() {
    let api = FakeApi::new();
    api.put(node("a", "v1.34.1"));
    for namespace in ["a", "b", "c"] {
        api.put(refused_native(namespace, namespace, -7200));
    }
    support::now();
    let replica = Replica::start(&api, "one").await;
    replica.rig.settle(60).await;
    assert_eq!(facts(&api), Facts { native: Some(Native::Possible), ..Facts::default() });
    assert_eq!(replica.rig.metric("kickstand_controller_native_refusals_total"), 0);
    replica.stop().await;
}
