use std::time::Duration;

use kickstand::leader::{Candidate, Settings};
use kickstand::pod::facts::Facts;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::Rig;
use crate::support::objects::{NOP, done_pod, gated_pod, judged, running, sidecar_ready};
use crate::support::{self, FakeApi};

#[tokio::test(start_paused = true)]
async fn a_standby_does_nothing_until_it_leads_and_then_everything() {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    let mut pod = gated_pod("pod", "run");
    sidecar_ready(&mut pod);
    api.put(pod);
    api.put(judged("past", "past", true, -2));
    api.put(done_pod("past", "past", -3));
    let rig = Rig::start(&api, false, &[]).await;
    rig.settle(600).await;
    assert!(api.calls().iter().all(|call| !call.writes()), "{:?}", api.writes());
    assert!(api.calls().iter().all(|call| !call.path.ends_with("/taskruns/past")), "it need not even ask");

    rig.leader.send_replace(true);
    api.until("both are seen to", |api| api.writes().len() == 2).await;
    assert_eq!(api.get("pods", "past").unwrap()["spec"]["containers"][1]["image"], NOP);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_leads_no_more_does_nothing_more() {
    let api = FakeApi::new();
    api.put(running("run", "pod"));
    api.put(gated_pod("pod", "run"));
    let rig = Rig::leading(&api).await;
    rig.settle(10).await;
    rig.leader.send_replace(false);
    rig.settle(1).await;
    api.change("pods", "pod", sidecar_ready);
    rig.settle(3600).await;
    assert!(api.calls().iter().all(|call| !call.writes()), "{:?}", api.writes());
    assert_eq!(rig.metric("kickstand_controller_is_leader"), 0);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_being_retried_is_dropped_when_the_lead_is_lost() {
    let api = FakeApi::new();
    api.put(judged("run", "pod", true, -2));
    api.put(done_pod("pod", "run", -3));
    api.fail("PATCH", "/pods/", 503, "ServiceUnavailable", "", 1000);
    let rig = Rig::leading(&api).await;
    api.until("it was tried", |api| api.writes().len() > 2).await;
    rig.leader.send_replace(false);
    rig.settle(1).await;
    api.recover();
    api.forget_calls();
    rig.settle(600).await;
    assert!(api.writes().is_empty(), "{:?}", api.writes());

    rig.leader.send_replace(true);
    api.until("it is done", |api| api.get("pods", "pod").unwrap()["spec"]["containers"][1]["image"] == NOP).await;
    rig.stop().await;
}

fn candidate(api: &FakeApi, identity: &str) -> (Candidate, watch::Receiver<bool>) {
    candidate_that(watch::channel(true).1, api, identity)
}

fn candidate_that(sees: watch::Receiver<bool>, api: &FakeApi, identity: &str) -> (Candidate, watch::Receiver<bool>) {
    Candidate::new(api.client(), settings(identity), sees, watch::channel(Facts::default()).0)
}

pub(crate) fn settings(identity: &str) -> Settings {
    Settings {
        namespace: "kickstand".to_owned(),
        name: "kickstand-controller".to_owned(),
        identity: identity.to_owned(),
        now: support::now,
    }
}

fn holder(api: &FakeApi) -> String {
    let lease = api.get("leases", "kickstand-controller");
    lease.and_then(|lease| lease["spec"]["holderIdentity"].as_str().map(str::to_owned)).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_another_follows_at_once_when_it_goes() {
    let api = FakeApi::new();
    let (one, one_leads) = candidate(&api, "one");
    let (two, two_leads) = candidate(&api, "two");
    let going = CancellationToken::new();
    let end = CancellationToken::new();
    let one = tokio::spawn(one.run(going.clone()));
    api.until("one leads", |_| *one_leads.borrow()).await;
    let two = tokio::spawn(two.run(end.clone()));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(*one_leads.borrow() && !*two_leads.borrow());

    // What others note on it stays.
    api.change("leases", "kickstand-controller", |lease| lease["metadata"]["annotations"] = json!({ "a": "b" }));
    going.cancel();
    one.await.unwrap();
    assert_eq!(holder(&api), "");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!*one_leads.borrow() && *two_leads.borrow());
    assert_eq!(api.get("leases", "kickstand-controller").unwrap()["metadata"]["annotations"]["a"], "b");
    assert_eq!(api.get("leases", "kickstand-controller").unwrap()["spec"]["leaseTransitions"], 2);
    end.cancel();
    two.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leader_cut_off_gives_up_before_another_begins() {
    let api = FakeApi::new();
    let (one, mut one_leads) = candidate(&api, "one");
    let (two, mut two_leads) = candidate(&api, "two");
    let end = CancellationToken::new();
    let one = tokio::spawn(one.run(end.clone()));
    api.until("one leads", |_| *one_leads.borrow()).await;
    let two = tokio::spawn(two.run(end.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    // Nobody can write any more; everybody can read.
    api.fail("PATCH", "/leases/", 500, "InternalError", "etcd is away", 100_000);
    one_leads.wait_for(|leads| !leads).await.unwrap();
    assert!(!*two_leads.borrow());
    let given_up = tokio::time::Instant::now();
    api.recover();
    tokio::select! {
        _ = two_leads.wait_for(|leads| *leads) => assert!(given_up.elapsed() >= Duration::from_secs(3)),
        // The Lease is still in its name: it may take it again before the other dares to.
        _ = one_leads.wait_for(|leads| *leads) => {}
    }
    assert!(!(*one_leads.borrow() && *two_leads.borrow()));
    end.cancel();
    one.await.unwrap();
    two.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_see_pods_lets_another_lead() {
    let api = FakeApi::new();
    let (seeing, sees) = watch::channel(false);
    let (one, one_leads) = candidate_that(sees, &api, "one");
    let end = CancellationToken::new();
    let one = tokio::spawn(one.run(end.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!*one_leads.borrow() && holder(&api).is_empty(), "it has seen nothing yet");
    seeing.send_replace(true);
    api.until("one leads", |_| *one_leads.borrow()).await;

    let (two, two_leads) = candidate(&api, "two");
    let two = tokio::spawn(two.run(end.clone()));
    tokio::time::sleep(Duration::from_secs(60)).await;
    seeing.send_replace(false);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!*one_leads.borrow() && *two_leads.borrow(), "at once: it need not run out");
    seeing.send_replace(true);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!*one_leads.borrow() && *two_leads.borrow(), "the other goes on");
    end.cancel();
    one.await.unwrap();
    two.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pods_that_cannot_be_watched_for_a_while_are_not_seen_until_they_are_listed_again() {
    let api = FakeApi::new();
    let rig = Rig::leading(&api).await;
    api.until("it sees", |_| *rig.sees.borrow()).await;
    api.cut("pods");
    rig.settle(120).await;
    assert!(*rig.sees.borrow(), "a watch that breaks off and is taken up again is no trouble");

    api.fail("GET", "/api/v1/pods", 500, "InternalError", "etcd is away", 100_000);
    api.cut("pods");
    rig.settle(10).await;
    assert!(*rig.sees.borrow(), "not for a moment");
    rig.settle(30).await;
    assert!(!*rig.sees.borrow());
    api.recover();
    api.until("it sees again", |_| *rig.sees.borrow()).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_namespace_that_may_not_be_watched_any_more_blinds_nobody_for_the_others() {
    let api = FakeApi::new();
    let rig = Rig::start(&api, true, &["ci", "cd"]).await;
    api.fail("GET", "/namespaces/cd/pods", 403, "Forbidden", "pods is forbidden", 100_000);
    api.cut("pods");
    rig.settle(120).await;
    assert!(*rig.sees.borrow());
    rig.stop().await;
}

pub(crate) fn told(api: &FakeApi) -> Option<String> {
    let lease = api.get("leases", "kickstand-controller")?;
    lease["metadata"]["annotations"]["kickstand.dev/facts"].as_str().map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn what_the_leader_knows_stands_on_the_lease_and_its_successor_goes_on_from_there() {
    let api = FakeApi::new();
    let (_seeing, sees) = watch::channel(true);
    let start = |identity: &str, end: &CancellationToken| {
        let (facts, _) = watch::channel(Facts::default());
        let (candidate, leads) = Candidate::new(api.client(), settings(identity), sees.clone(), facts.clone());
        (facts, leads, tokio::spawn(candidate.run(end.clone())))
    };
    let (going, end) = (CancellationToken::new(), CancellationToken::new());
    let (facts, leads, one) = start("one", &going);
    api.until("one leads", |_| *leads.borrow()).await;
    assert_eq!(told(&api), None);
    facts.send_if_modified(|facts| facts.gate_was_refused("locked", support::now()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(told(&api).unwrap().starts_with(r#"{"gatesRefused":{"locked":""#), "within seconds");
    going.cancel();
    one.await.unwrap();

    let (facts, leads, two) = start("two", &end);
    api.until("two leads", |_| *leads.borrow()).await;
    assert!(facts.borrow().refuses_gates("locked") && told(&api).is_some());
    tokio::time::sleep(Duration::from_secs(3700)).await;
    assert_eq!(told(&api), None, "forgotten after an hour");
    end.cancel();
    two.await.unwrap();
}

fn abandoned() -> FakeApi {
    let api = FakeApi::new();
    api.put(json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "kickstand-controller", "namespace": "kickstand" },
        "spec": { "holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "2026-12-01T11:59:59.000000Z" },
    }));
    api
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_lease_is_taken_once_it_has_lain_still_for_as_long_as_was_promised() {
    let api = abandoned();
    let (one, one_leads) = candidate(&api, "one");
    let (two, two_leads) = candidate(&api, "two");
    let end = CancellationToken::new();
    let (one, two) = (tokio::spawn(one.run(end.clone())), tokio::spawn(two.run(end.clone())));
    tokio::time::sleep(Duration::from_secs(14)).await;
    assert!(!*one_leads.borrow() && !*two_leads.borrow());
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(*one_leads.borrow() != *two_leads.borrow());
    end.cancel();
    one.await.unwrap();
    two.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_is_beaten_to_it_does_not_lead() {
    let api = abandoned();
    api.meanwhile("PATCH", "/leases/", |api| {
        api.change("leases", "kickstand-controller", |lease| lease["spec"]["holderIdentity"] = "rival".into());
    });
    let (one, one_leads) = candidate(&api, "one");
    let end = CancellationToken::new();
    let one = tokio::spawn(one.run(end.clone()));
    api.until("the rival has it", |api| holder(api) == "rival").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!*one_leads.borrow());
    end.cancel();
    one.await.unwrap();
    assert_eq!(holder(&api), "rival", "what is not ours is not given up");
}
