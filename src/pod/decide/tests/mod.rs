//! Every row of the controller's table as a sentence. Times are seconds after the pod's start; steps end at 60.

pub(in crate::pod) mod build;
mod hold;
mod properties;
mod stop;
mod unstartable;

use std::fmt::Write as _;

use rstest::rstest;

use self::build::{Build, NOP, at, c, pod, seconds};
use super::*;
use crate::pod::verdict::Outcome;

/// What is known beside the pod, for a test.
#[derive(Clone, Debug)]
pub(in crate::pod) struct Seen {
    verdict: Verdict,
    since: Option<Timestamp>,
    now: Timestamp,
    namespace_opted_out: bool,
    leaving: bool,
    turned_classic: Option<TurnedClassic>,
}

/// No verdict, and that many seconds after the pod's start.
pub(in crate::pod) fn seen_at(now: i64) -> Seen {
    Seen {
        verdict: Verdict::None,
        since: None,
        now: at(now),
        namespace_opted_out: false,
        leaving: false,
        turned_classic: None,
    }
}

impl Seen {
    fn recorded(mut self, outcome: Outcome, recorded: Option<i64>) -> Self {
        self.verdict = Verdict::Recorded { outcome, at: recorded.map(at) };
        self
    }

    pub(in crate::pod) fn succeeded(self, recorded: i64) -> Self {
        self.recorded(Outcome::Succeeded, Some(recorded))
    }

    pub(in crate::pod) fn failed(self, recorded: i64) -> Self {
        self.recorded(Outcome::Failed, Some(recorded))
    }

    fn verdict_first_seen(mut self, first: i64) -> Self {
        self.since = Some(at(first));
        self
    }

    fn leaving(mut self) -> Self {
        self.leaving = true;
        self
    }

    fn namespace_opted_out(mut self) -> Self {
        self.namespace_opted_out = true;
        self
    }

    /// The webhook was told, then, to make the TaskRun's next pod classic, for the sake of this pod.
    fn turned_classic(mut self, pod: &str, since: i64) -> Self {
        self.turned_classic = Some(TurnedClassic { pod: pod.to_owned(), since: at(since) });
        self
    }

    pub(in crate::pod) fn decide(&self, pod: &Pod) -> Decision {
        let tekton_nop_images = ["registry.example/tekton/nop".to_owned(), String::new()];
        decide(
            pod,
            &Context {
                verdict: self.verdict.clone(),
                verdict_seen: self.since,
                now: self.now,
                namespace_opted_out: self.namespace_opted_out,
                leaving: self.leaving,
                turned_classic: self.turned_classic.as_ref(),
                nop_image: NOP,
                tekton_nop_images: &tekton_nop_images,
                known: Known::builtin(),
            },
        )
    }

    /// In short: `stop web by nop, or end; again at 70`.
    fn on(&self, pod: Build) -> String {
        in_short(&self.decide(&pod.build()))
    }

    /// The messages alone.
    fn says_of(&self, pod: Build) -> String {
        let decision = self.decide(&pod.build());
        let said: Vec<String> =
            decision.actions.iter().map(|action| format!("{}: {}", action.reason.as_str(), action.message)).collect();
        said.join("\n")
    }
}

fn in_short(decision: &Decision) -> String {
    let mut parts: Vec<String> = decision.actions.iter().map(action_in_short).collect();
    if parts.is_empty() {
        parts.push("nothing".to_owned());
    }
    if let Some(again) = decision.again_at {
        parts.push(format!("again at {}", seconds(again)));
    }
    parts.join("; ")
}

fn action_in_short(action: &Action) -> String {
    let mut text = match &action.effect {
        Effect::OpenGate => "open".to_owned(),
        Effect::Nudge => "nudge".to_owned(),
        Effect::End => "end".to_owned(),
        Effect::TurnClassic { run } => format!("turn {run} classic"),
        Effect::Replace => "replace".to_owned(),
        Effect::Say { key } => format!("say {key}"),
        Effect::Stop { orders, else_end } => {
            let mut text = "stop".to_owned();
            for (at, order) in orders.iter().enumerate() {
                let how = if order.how == How::Nop { "nop" } else { "Ended" };
                let _ = write!(text, "{} {} by {how}", if at == 0 { "" } else { "," }, order.name);
            }
            if *else_end { text + ", or end" } else { text }
        }
    };
    if action.effect == Effect::OpenGate && action.reason.is_warning() {
        text.push_str(" with a Warning");
    }
    // What follows from a verdict must be confirmed, and nothing else needs to be.
    let follows = matches!(&action.effect, Effect::End | Effect::Stop { else_end: true, .. });
    if follows && !action.on_verdict {
        text.push_str(", unconfirmed!");
    }
    text
}

/// Steps done, and one sidecar runs: one of the pods that are acted on.
fn finished() -> Build {
    pod().step(c("one").exited(0)).sidecar(c("sidecar-web").ready())
}

/// A gate that could be opened: the other.
fn held_without_need() -> Build {
    pod().gated().step(c("one").ready()).sidecar(c("sidecar-web").ready())
}

#[rstest]
#[case::that_succeeded("Succeeded")]
#[case::that_failed("Failed")]
#[case::whose_kubelet_is_lost("Unknown")]
#[case::in_a_phase_that_is_not_known("Hibernating")]
fn a_pod_is_left_alone(#[case] phase: &str) {
    assert_eq!(seen_at(70).succeeded(61).on(finished().phase(phase)), "nothing");
    assert_eq!(seen_at(70).on(held_without_need().phase(phase)), "nothing");
}

#[test]
fn a_pod_being_deleted_is_left_alone_and_its_readiness_means_nothing() {
    let deleted = |pod: Build| pod.set("/metadata/deletionTimestamp", "2026-01-01T10:01:00Z".into());
    assert_eq!(seen_at(70).succeeded(61).on(deleted(finished())), "nothing");
    assert_eq!(seen_at(70).on(deleted(held_without_need())), "nothing");
}

#[rstest]
#[case::before(120, 119, "stop sidecar-web by nop, or end")]
#[case::at(120, 120, "nothing")]
#[case::after(120, 121, "nothing")]
#[case::set_by_us_whatever_the_clocks_say(1, 0, "nothing")]
fn a_pod_past_its_own_deadline_is_left_alone(#[case] deadline: i64, #[case] now: i64, #[case] expected: &str) {
    assert_eq!(seen_at(now).succeeded(61).on(finished().deadline(deadline)), expected);
}

#[test]
fn a_pod_on_a_lost_node_is_left_alone_until_the_node_is_back() {
    let lost = finished().set("/status/reason", "NodeLost".into());
    assert_eq!(seen_at(70).succeeded(61).on(lost.clone()), "nothing");
    assert_eq!(seen_at(70).succeeded(61).on(lost.annotated("kickstand.dev/gate", "false")), "nothing");
    assert_eq!(seen_at(70).succeeded(61).on(finished()), "stop sidecar-web by nop, or end");
}

#[rstest]
#[case::without_the_label(finished().set("/metadata/labels", serde_json::json!({})))]
#[case::without_an_owner(finished().set("/metadata/ownerReferences", serde_json::json!([])))]
#[case::without_tektons_entrypoint(pod().sidecar(c("sidecar-web").ready()))]
fn a_pod_that_is_no_task_runs_is_left_alone(#[case] pod: Build) {
    assert_eq!(seen_at(70).succeeded(61).on(pod), "nothing");
}

#[test]
fn a_gate_of_ours_is_released_whatever_the_pod_looks_like() {
    let unlabelled = held_without_need().set("/metadata/labels", serde_json::json!({}));
    assert_eq!(seen_at(5).on(unlabelled), "open");
}

#[test]
fn an_opted_out_pod_is_left_alone() {
    assert_eq!(seen_at(70).succeeded(61).on(finished().opted_out()), "nothing");
    assert_eq!(seen_at(70).succeeded(61).namespace_opted_out().on(finished()), "nothing");
    assert_eq!(seen_at(70).succeeded(61).on(finished().annotated("kickstand.dev/stop", "false")), "nothing");
}

/// The first step is held, and its sidecar is not ready.
fn held() -> Build {
    pod().gated().step(c("one").ready()).sidecar(c("sidecar-web").readiness_probe().running())
}

#[rstest]
#[case::by_the_pods_label(seen_at(5), held().opted_out())]
#[case::by_the_namespaces_label(seen_at(5).namespace_opted_out(), held())]
#[case::by_an_annotation_that_appeared_later(seen_at(5), held().annotated("kickstand.dev/gate", "false"))]
#[case::on_a_lost_node(seen_at(5).namespace_opted_out(), held().phase("Unknown"))]
fn an_opted_out_pod_with_a_shut_gate_is_released(#[case] seen: Seen, #[case] pod: Build) {
    assert_eq!(seen.on(pod.clone()), "open");
    assert_eq!(seen.clone().failed(4).on(pod.clone().phase("Running")), "end", "but not on a recorded verdict");
    assert_eq!(seen.on(pod.cancelled()), "say cancelled", "and not if its run is cancelled");
}

#[test]
fn when_kickstand_leaves_every_shut_gate_opens_and_nothing_is_stopped() {
    let leaving = |now| seen_at(now).leaving();
    assert_eq!(leaving(5).on(held()), "open");
    assert_eq!(leaving(5).on(held().annotated("kickstand.dev/gate-timeout", "soon")), "open");
    assert_eq!(leaving(5).on(held().phase("Unknown")), "open");
    assert_eq!(leaving(70).succeeded(61).on(finished()), "nothing");
    assert_eq!(leaving(70).on(finished().annotated("kickstand.dev/keep-logs", "maybe")), "nothing");
    // The gate is ours: what it holds for ever must be ended by us, too.
    assert_eq!(leaving(5).failed(4).on(held()), "end");
    assert_eq!(leaving(5).on(held().cancelled()), "say cancelled");
    insta::assert_snapshot!(leaving(5).says_of(held()), @"KickstandGateOpened: released by `kickstand release`: the first step starts without waiting for its sidecars");
}

#[test]
fn an_annotation_that_cannot_be_read_is_said_once_for_each_entry_and_harms_nothing() {
    let pod = finished()
        .annotated("kickstand.dev/finish", "web, web=soon")
        .annotated("kickstand.dev/keep-logs", "yes")
        .annotated("kickstand.dev/gate-timeout", "-5m");
    insta::assert_snapshot!(seen_at(70).succeeded(61).says_of(pod.clone()), @r#"
    KickstandBadAnnotation: annotation kickstand.dev/keep-logs: "yes" is neither "true" nor "false"; logs are kept where it costs nothing
    KickstandBadAnnotation: annotation kickstand.dev/gate-timeout: "-5m" is negative; the default timeout holds
    KickstandBadAnnotation: annotation kickstand.dev/finish: "web" is not name=duration; it is stopped with the others
    KickstandBadAnnotation: annotation kickstand.dev/finish: "web=soon" is no duration such as 90s or 5m; it is stopped with the others
    KickstandSidecarsStopped: the steps are done: stopped sidecar-web (by nop)
    "#);
    let keys: std::collections::BTreeSet<String> =
        seen_at(70).decide(&pod.build()).actions.iter().map(action_in_short).collect();
    assert_eq!(keys.len(), 4, "each has a key of its own: {keys:?}");
}

#[test]
fn a_flood_of_entries_that_cannot_be_read_is_no_flood_of_events() {
    let pod = finished().annotated("kickstand.dev/finish", &"x,".repeat(5000));
    let said = seen_at(70).succeeded(61).decide(&pod.build()).actions;
    assert!(said.len() < 12, "{} actions", said.len());
}

#[test]
fn a_message_fits_into_an_event() {
    let mut pod = pod().gated().step(c("one").ready());
    for number in 0..40 {
        pod = pod.sidecar(c(&format!("sidecar-{number}")).waiting_because("ErrImagePull", &"ü".repeat(300)));
    }
    let decision = seen_at(60).decide(&pod.build());
    let message = &decision.actions[0].message;
    assert!(message.len() < 1024 && message.ends_with('…'), "{} bytes: {message}", message.len());
}

#[test]
fn a_tenants_nonsense_never_panics() {
    let values = [
        "",
        "\0",
        "true\0",
        "99999999h",
        "-99999999h",
        "9223372036854775807s",
        "99999999999999999999y",
        "web=99999999h,sidecar-web=9223372036854775807s,=,==,web=,=5s",
        "{\"sidecar-web\":{\"image\":\"x\",\"at\":\"9999-12-30T22:00:00Z\"}}",
        "{\"sidecar-web\":{\"image\":\"x\",\"at\":\"-009999-01-02T01:59:59Z\"}}",
        "{\"sidecar-web\":{\"image\":\"x\",\"at\":\"9999-12-31T23:59:59Z\"}}",
        "{\"sidecar-web\":null}",
        "[[[[",
        "𝕨𝕖𝕓,\u{202e}",
    ];
    let keys = ["gate", "stop", "gate-timeout", "ignore", "finish", "keep-logs", "original-images", "ready", "inject"];
    let numbers = [i64::MIN, -1, 0, 1, 2, 86_400, i64::from(i32::MAX), i64::MAX];
    for key in keys {
        for value in values {
            let key = format!("kickstand.dev/{key}");
            for pod in [finished(), held(), held_without_need()] {
                let pod = pod.annotated(&key, value).build();
                for seen in [seen_at(0), seen_at(700), seen_at(700).succeeded(61), seen_at(700).failed(61)] {
                    seen.decide(&pod);
                }
            }
        }
    }
    for number in numbers {
        for field in ["activeDeadlineSeconds", "terminationGracePeriodSeconds"] {
            for pod in [finished().stopped("sidecar-web", "x", 62), held()] {
                let pod = pod.set(&format!("/spec/{field}"), number.into()).build();
                for now in [Timestamp::MIN, at(0), at(700), Timestamp::MAX] {
                    for verdict in [Some(Timestamp::MIN), Some(Timestamp::MAX), None] {
                        let mut seen = seen_at(0).recorded(Outcome::Succeeded, None);
                        seen.verdict = Verdict::Recorded { outcome: Outcome::Gone, at: verdict };
                        seen.since = verdict;
                        seen.now = now;
                        seen.decide(&pod);
                        seen.verdict = Verdict::None;
                        seen.decide(&pod);
                    }
                }
            }
        }
    }
}
