//! What Kickstand would have done to pods that others have seen: `decide` runs over recorded and reckoned statuses.
//!
//! `fixtures/live`: watch events of a real cluster (Kubernetes 1.37, Tekton 1.15, Istio), on which Kickstand was not.
//! `fixtures/status`: sequences of statuses reckoned from the kubelet's sources and public reports, each with what plain
//! rules would expect. Both are thinned to what is read here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a fixture that cannot be read fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use jiff::{SignedDuration, Timestamp};
use kickstand::pod::contract::{NUDGED, ORIGINAL_IMAGES, READY};
use kickstand::pod::decide::{Action, Context, Decision, Effect, LAST_DEADLINE_SECONDS, decide};
use kickstand::pod::known::Known;
use kickstand::pod::model::Pod;
use kickstand::pod::mutate::{self, mutate};
use kickstand::pod::native::Off;
use kickstand::pod::verdict::{Outcome, TaskRun, Verdict};
use rstest::rstest;
use serde_json::{Value, json};

const NOP: &str = "registry.example/kickstand/nop:1";

fn fixture(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn lines(path: &str) -> Vec<Value> {
    fixture(path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The pod as our webhook would have made it.
fn gated(pod: &Value) -> Value {
    let options = mutate::Options {
        controller_alive: true,
        gates_refused: false,
        native: Err(Off::Unknown),
        skip_tekton_wait: true,
        known: Known::builtin(),
    };
    let mutation = mutate(pod, &options).unwrap();
    let mut gated = pod.clone();
    json_patch::patch(&mut gated, &mutation.patch).unwrap();
    gated
}

fn look(pod: &Pod, verdict: Verdict, verdict_seen: Option<Timestamp>, now: Timestamp) -> Decision {
    let tekton_nop_images = ["localhost/tekton/nop".to_owned(), "ghcr.io/example/sidecar-nop".to_owned()];
    let (namespace_opted_out, leaving, nop_image) = (false, false, NOP);
    decide(
        pod,
        &Context {
            verdict,
            verdict_seen,
            now,
            namespace_opted_out,
            leaving,
            turned_classic: None,
            nop_image,
            tekton_nop_images: &tekton_nop_images,
            known: Known::builtin(),
        },
    )
}

/// A controller in small: the newest pod and TaskRun, one timer, and what it has done to the pod so far.
#[derive(Default)]
struct Controller {
    with_webhook: bool,
    pod: Option<Value>,
    run: Option<TaskRun>,
    again_at: Option<Timestamp>,
    verdict_seen: Option<Timestamp>,
    /// What its patches would have left in the pod, which the recording does not know of.
    annotations: BTreeMap<&'static str, String>,
    images: BTreeMap<String, String>,
    ended: bool,
    said: BTreeSet<String>,
    timeline: String,
}

impl Controller {
    fn event(&mut self, object: &Value, now: Timestamp, t: f64) {
        if object["kind"] == "Pod" {
            self.pod = Some(object.clone());
        } else {
            self.run = Some(serde_json::from_value(object.clone()).unwrap());
        }
        self.look(now, t);
    }

    fn look(&mut self, now: Timestamp, t: f64) {
        let Some(raw) = &self.pod else { return };
        let mut raw = if self.with_webhook { gated(raw) } else { raw.clone() };
        for (key, value) in &self.annotations {
            raw["metadata"]["annotations"][key] = value.as_str().into();
        }
        for container in raw["spec"]["containers"].as_array_mut().unwrap() {
            if let Some(image) = self.images.get(container["name"].as_str().unwrap()) {
                container["image"] = image.as_str().into();
            }
        }
        if self.ended {
            raw["spec"]["activeDeadlineSeconds"] = LAST_DEADLINE_SECONDS.into();
        }
        let pod = Pod::from_raw(&raw).unwrap();
        let verdict = Verdict::of(&pod, self.run.as_ref());
        if verdict.is_recorded() {
            self.verdict_seen.get_or_insert(now);
        }
        let decision = look(&pod, verdict, self.verdict_seen, now);
        self.again_at = decision.again_at;
        for action in &decision.actions {
            self.act(action, now, t);
        }
    }

    fn act(&mut self, action: &Action, now: Timestamp, t: f64) {
        let did = match &action.effect {
            Effect::OpenGate => {
                self.annotations.insert(READY, now.to_string());
                "opens the gate"
            }
            Effect::Nudge => {
                self.annotations.insert(NUDGED, now.to_string());
                "nudges the kubelet"
            }
            Effect::TurnClassic { .. } => "has the run's next pod made classic",
            Effect::Replace => "deletes the pod",
            Effect::Stop { orders, .. } => {
                let note: BTreeMap<&str, Value> = orders
                    .iter()
                    .map(|order| (order.name.as_str(), json!({ "image": order.from, "at": now })))
                    .collect();
                self.annotations.insert(ORIGINAL_IMAGES, json!(note).to_string());
                self.images.extend(orders.iter().map(|order| (order.name.clone(), order.how.image(NOP).to_owned())));
                "stops"
            }
            Effect::End => {
                self.ended = true;
                "ends the pod"
            }
            Effect::Say { key } => {
                if !self.said.insert(format!("{:?} {key}", action.reason)) {
                    return;
                }
                "says"
            }
        };
        let confirmed = if action.on_verdict { ", once the verdict is confirmed" } else { "" };
        let _ = writeln!(self.timeline, "{t:6.2} {did}{confirmed}: {}: {}", action.reason.as_str(), action.message);
    }
}

/// When a recording's controller would have acted, and how. After the last event come seconds in which only the clock
/// moves. (What was stopped still runs in the recording: too many of them, and the pod would be ended for it.)
fn timeline(recording: &str, with_webhook: bool, silence: f64) -> String {
    let mut events = lines(&format!("live/{recording}.jsonl"));
    events.sort_by(|one, other| one["t"].as_f64().unwrap().total_cmp(&other["t"].as_f64().unwrap()));
    // The recording's zero: a pod's creation has whole seconds, which is near enough.
    let created = events.iter().find(|event| event["object"]["kind"] == "Pod").unwrap();
    let seconds = |t: f64| SignedDuration::from_secs_f64(t);
    let zero: Timestamp = created["object"]["metadata"]["creationTimestamp"].as_str().unwrap().parse().unwrap();
    let zero = zero.checked_sub(seconds(created["t"].as_f64().unwrap())).unwrap();

    let mut controller = Controller { with_webhook, ..Controller::default() };
    let last = events.last().unwrap()["t"].as_f64().unwrap();
    let silence = json!({ "t": last + silence });
    for event in events.iter().chain([&silence]) {
        let t = event["t"].as_f64().unwrap();
        let now = zero.checked_add(seconds(t)).unwrap();
        while let Some(again) = controller.again_at.filter(|again| *again < now) {
            controller.look(again, again.duration_since(zero).as_secs_f64());
            assert!(controller.again_at.is_none_or(|next| next > again), "the timer stands still");
        }
        if let Some(object) = event.get("object") {
            controller.event(object, now, t);
        }
    }
    controller.timeline
}

#[rstest]
#[case("declared-tekton-stops", 20.0)]
#[case("declared-step-fails-no-wait", 20.0)]
#[case("declared-sidecar-exits-1", 20.0)]
#[case("declared-never-ready-times-out", 20.0)]
#[case("declared-never-ready-cancelled-kept", 180.0)]
#[case("istio-classic-hangs", 20.0)]
#[case("istio-classic-with-declared-native-never-ends", 20.0)]
#[case("istio-native", 20.0)]
fn on_a_real_cluster(#[case] recording: &str, #[case] silence: f64) {
    let with = timeline(recording, true, silence);
    let without = timeline(recording, false, silence);
    let text = format!("with the webhook:\n{with}\nwithout it:\n{without}");
    insta::assert_snapshot!(recording, text);
}

#[test]
fn a_proxy_that_nobody_ended_is_stopped_once_after_the_verdict() {
    let timeline = timeline("istio-classic-hangs", true, 20.0);
    let stops: Vec<&str> = timeline.lines().filter(|line| line.contains("stops")).collect();
    assert!(matches!(stops[..], [stop] if stop.contains("stopped istio-proxy (logs kept)")), "{timeline}");
    assert!(stops[0].contains("once the verdict is confirmed"), "{timeline}");
}

#[test]
fn a_cancelled_pod_that_is_kept_ends_behind_its_shut_gate() {
    let timeline = timeline("declared-never-ready-cancelled-kept", true, 20.0);
    assert!(!timeline.contains("opens"), "{timeline}");
    assert!(timeline.contains("says: KickstandGateClosed"), "{timeline}");
    assert!(timeline.contains("ends the pod, once the verdict is confirmed: KickstandGateClosed"), "{timeline}");
}

#[test]
fn a_run_that_would_never_end_is_freed_without_a_verdict() {
    let timeline = timeline("istio-classic-with-declared-native-never-ends", true, 20.0);
    let stop = timeline.lines().find(|line| line.contains("stops, once the verdict is confirmed: ")).unwrap();
    assert!(stop.contains("nothing else would end the pod: stopped istio-proxy (by nop)"), "{timeline}");
}

/// A sequence of statuses: its pod, and its snapshots.
fn sequence(case: &str) -> Vec<(Value, Value)> {
    let snapshots = lines(&format!("status/{case}.jsonl"));
    let name = snapshots[0]["pod"].as_str().unwrap();
    let base: Value = serde_json::from_str(&fixture(&format!("status/pods/{name}.json"))).unwrap();
    let base = gated(&base);
    let pods = snapshots.iter().map(|snapshot| {
        let mut pod = base.clone();
        pod["status"] = snapshot["status"].clone();
        if let Some(time) = snapshot.get("deletionTimestamp") {
            pod["metadata"]["deletionTimestamp"] = time.clone();
        }
        for container in pod["spec"]["containers"].as_array_mut().unwrap() {
            if let Some(image) = snapshot["images"].get(container["name"].as_str().unwrap()) {
                container["image"] = image.clone();
            }
        }
        pod
    });
    pods.zip(snapshots.iter().cloned()).collect()
}

fn cases() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/status");
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut cases: Vec<String> = files.filter_map(|file| file.strip_suffix(".jsonl").map(str::to_owned)).collect();
    cases.sort();
    cases
}

fn steps_failed(pod: &Pod) -> bool {
    pod.status.container_statuses.iter().any(|status| {
        status.name.starts_with("step-") && status.state.terminated.as_ref().is_some_and(|ended| ended.exit_code != 0)
    })
}

/// Where we open a gate at another time than strict readiness would, and why.
const GATES: &[(&str, &str, &str)] = &[
    (
        "hold-poststart-failed-never",
        "77 instead of never",
        "it failed and will not restart: holding would burn the timeout",
    ),
    ("native-istio-exit0", "never instead of 12", "not gated: its startupProbe holds the steps"),
    ("native-sidecar-crashloop", "never instead of 26", "not gated: its startupProbe holds the steps"),
    ("no-sidecars", "never instead of 7", "not gated: nobody to wait for"),
    ("sidecar-crashloop-onfailure", "45 instead of 176", "restarted twice, it has had its chance"),
];

/// Where we stop others than "every classic sidecar that runs once the steps are final", and why.
const STOPS: &[(&str, &str, &str)] =
    &[("deadline-exceeded", "5401: [] instead of [\"istio-proxy\"]", "past its own deadline, the kubelet is at it")];

#[test]
fn gates_open_when_every_sidecar_is_ready() {
    let mut found = Vec::new();
    for case in cases() {
        let sequence = sequence(&case);
        let t = |at: Option<usize>| at.map_or("never".to_owned(), |at| sequence[at].1["t"].to_string());
        let expected = sequence.iter().position(|(_, snapshot)| snapshot["expect"]["gateMayOpen"] == true);
        let ours = sequence.iter().position(|(pod, snapshot)| {
            let now = snapshot["at"].as_str().unwrap().parse().unwrap();
            let decision = look(&Pod::from_raw(pod).unwrap(), Verdict::None, None, now);
            decision.actions.iter().any(|action| action.effect == Effect::OpenGate)
        });
        if ours != expected {
            found.push((case.clone(), format!("{} instead of {}", t(ours), t(expected))));
        }
    }
    let listed: Vec<(String, String)> =
        GATES.iter().map(|(case, what, _)| ((*case).to_owned(), (*what).to_owned())).collect();
    assert_eq!(found, listed);
}

#[test]
fn sidecars_are_stopped_when_the_steps_are_final() {
    let mut found = Vec::new();
    for case in cases() {
        for (mut pod, snapshot) in sequence(&case) {
            pod["metadata"]["annotations"][READY] = "2026-08-22T10:00:05Z".into();
            let pod = Pod::from_raw(&pod).unwrap();
            let now = snapshot["at"].as_str().unwrap().parse().unwrap();
            let final_steps = snapshot["expect"]["stepsWillNotRestart"] == true;
            let outcome = if steps_failed(&pod) { Outcome::Failed } else { Outcome::Succeeded };
            let verdict = if final_steps { Verdict::Recorded { outcome, at: Some(now) } } else { Verdict::None };
            let decision = look(&pod, verdict, None, now);
            let mut ours: Vec<&str> = Vec::new();
            for action in &decision.actions {
                match &action.effect {
                    Effect::Stop { orders, .. } => ours.extend(orders.iter().map(|order| order.name.as_str())),
                    Effect::End => ours.push("(ends)"),
                    Effect::TurnClassic { .. } | Effect::Replace => ours.push("(made anew)"),
                    Effect::OpenGate | Effect::Nudge | Effect::Say { .. } => {}
                }
            }
            let none = Vec::new();
            let expected = snapshot["expect"]["sidecarsToSwapNow"].as_array().unwrap_or(&none);
            let mut expected: Vec<&str> = expected.iter().map(|name| name.as_str().unwrap()).collect();
            ours.sort_unstable();
            expected.sort_unstable();
            if ours != expected {
                found.push((case.clone(), format!("{}: {ours:?} instead of {expected:?}", snapshot["t"])));
            }
        }
    }
    let listed: Vec<(String, String)> =
        STOPS.iter().map(|(case, what, _)| ((*case).to_owned(), (*what).to_owned())).collect();
    assert_eq!(found, listed);
}
