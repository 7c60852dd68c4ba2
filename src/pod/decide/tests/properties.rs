//! What holds for every pod, status, verdict and time.

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Seen;
use super::build::{Build, C, NOP, at, c, pod};
use crate::pod::contract::ENDED_IMAGE;
use crate::pod::decide::{Decision, Effect, Order, STUCK, steps_done_at};
use crate::pod::gate;
use crate::pod::known::Known;
use crate::pod::model::{Phase, Pod};
use crate::pod::patch;
use crate::pod::sidecars::{classic, native};
use crate::pod::tekton;
use crate::pod::verdict::{Outcome, Verdict};

fn state() -> impl Strategy<Value = fn(C) -> C> {
    let states: [fn(C) -> C; 14] = [
        |c| c,
        C::running,
        C::ready,
        C::ready,
        C::starting,
        C::start_error,
        |c| c.exited(0),
        |c| c.exited(0),
        |c| c.exited(1),
        |c| c.exited_at(137, 30),
        |c| c.waiting("ImagePullBackOff"),
        |c| c.waiting("ContainerCreating"),
        |c| c.waiting("CrashLoopBackOff").restarted(3, 1),
        |c| c.running().restarted(2, 0),
    ];
    proptest::sample::select(states.to_vec())
}

fn spec() -> impl Strategy<Value = fn(C) -> C> {
    let specs: [fn(C) -> C; 13] = [
        |c| c,
        |c| c,
        C::readiness_probe,
        C::startup_probe,
        C::uncovered,
        |c| c.image(NOP),
        |c| c.image(ENDED_IMAGE),
        |c| c.image("registry.example/tekton/nop:1"),
        |c| c.policy("OnFailure"),
        |c| c.policy("Always"),
        |c| c.policy("Never"),
        |c| c.rule("In", &[0, 137]),
        |c| c.rule("NotIn", &[1]),
    ];
    proptest::sample::select(specs.to_vec())
}

fn container(names: &'static [&'static str]) -> impl Strategy<Value = C> {
    (proptest::sample::select(names), spec(), spec(), state())
        .prop_map(|(name, one, two, state)| state(two(one(c(name)))))
}

const SIDECARS: &[&str] = &[
    "sidecar-web",
    "istio-proxy",
    "vault-agent",
    "linkerd-proxy",
    "helper",
    "gke-gcsfuse-sidecar",
    "sidecar-tekton-log-results",
    "csql-db",
];

const KEYS: &[&str] = &[
    "kickstand.dev/gate",
    "kickstand.dev/stop",
    "kickstand.dev/gate-timeout",
    "kickstand.dev/ignore",
    "kickstand.dev/finish",
    "kickstand.dev/keep-logs",
    "kickstand.dev/original-images",
    "kickstand.dev/ready",
    "tekton.dev/cancel",
    "tekton.dev/ready",
];

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::sample::select(vec![
            "true", "false", "0", "30s", "5m", "99999999h", "CANCEL", "READY", "web,helper", "web=30s,helper=1h",
            r#"{"sidecar-web":{"image":"old","at":"2026-01-01T10:01:02Z"}}"#,
            r#"{"helper":{"image":"old","at":"9999-12-30T22:00:00Z"}}"#, "2026-01-01T10:01:00Z", "-009999-01-01T00:00:00Z",
        ]).prop_map(str::to_owned),
        1 => "\\PC{0,12}",
        1 => any::<String>(),
    ]
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![4 => 0..2000_i64, 1 => any::<i64>(), 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

fn a_pod() -> impl Strategy<Value = Build> {
    let steps = vec(container(&["one"]), 1..3);
    let sidecars = vec(container(SIDECARS), 0..4);
    let natives = vec(container(&["native-web", "native-proxy"]), 0..2);
    let phase =
        option::weighted(0.3, proptest::sample::select(vec!["Pending", "Running", "Unknown", "Succeeded", "Failed"]));
    let policy = prop_oneof![6 => Just("Never"), 1 => Just("OnFailure"), 1 => Just("Always")];
    let annotations = btree_map(proptest::sample::select(KEYS), value(), 0..4);
    let numbers = (option::weighted(0.3, number()), option::weighted(0.3, number()));
    let flags = (any::<bool>(), any::<bool>(), option::weighted(0.2, any::<bool>()), proptest::bool::weighted(0.9));
    (steps, sidecars, natives, phase, policy, annotations, numbers, flags).prop_map(
        |(steps, sidecars, natives, phase, policy, annotations, (deadline, grace), (gated, first, waits, new))| {
            let mut pod = pod().policy(policy);
            let mut seen = std::collections::BTreeSet::new();
            let mut sidecars = sidecars.into_iter().filter(|sidecar| seen.insert(sidecar.name().to_owned()));
            if first && let Some(sidecar) = sidecars.next() {
                pod = pod.sidecar(sidecar);
            }
            for (number, step) in steps.into_iter().enumerate() {
                pod = pod.step(step.named(&number.to_string()));
            }
            pod = sidecars.fold(pod, Build::sidecar);
            for (number, sidecar) in natives.into_iter().enumerate() {
                let name = format!("{}-{number}", sidecar.name());
                pod = pod.native(sidecar.named(&name));
            }
            if let Some(phase) = phase {
                pod = pod.phase(phase);
            }
            if let Some(seconds) = deadline {
                pod = pod.deadline(seconds);
            }
            if let Some(seconds) = grace {
                pod = pod.set("/spec/terminationGracePeriodSeconds", seconds.into());
            }
            if let Some(signalled) = waits {
                pod = pod.tekton_waits(signalled);
            }
            if gated {
                pod = pod.gated();
            }
            if !new {
                pod = pod.old_tekton();
            }
            annotations.into_iter().fold(pod, |pod, (key, value)| pod.annotated(key, &value))
        },
    )
}

fn a_sight() -> impl Strategy<Value = Seen> {
    let outcome =
        proptest::sample::select(vec![Outcome::Succeeded, Outcome::Failed, Outcome::Superseded, Outcome::Gone]);
    let time = || prop_oneof![6 => 0..400_i64, 1 => -1000..100_000_i64];
    let recorded = (outcome, option::weighted(0.8, time()))
        .prop_map(|(outcome, recorded)| Verdict::Recorded { outcome, at: recorded.map(at) });
    let verdict = prop_oneof![2 => Just(Verdict::None), 3 => Just(Verdict::Withheld), 5 => recorded];
    let flag = || proptest::bool::weighted(0.05);
    (verdict, option::of(time()), time(), flag(), flag()).prop_map(
        |(verdict, first, now, namespace_opted_out, leaving)| Seen {
            verdict,
            since: first.map(at),
            now: at(now),
            namespace_opted_out,
            leaving,
            turned_classic: None,
        },
    )
}

/// The pod after an action was applied, as the API server would show it.
fn applied(raw: &Value, effect: &Effect, seen: &Seen) -> Value {
    let pod = Pod::from_raw(raw).unwrap();
    let patch = match effect {
        Effect::OpenGate => patch::open_gate(&pod, seen.now),
        Effect::Nudge => patch::nudge(&pod, seen.now),
        Effect::Stop { orders, .. } => patch::stop(&pod, orders, NOP, seen.now),
        Effect::End => patch::end(&pod),
        Effect::TurnClassic { .. } | Effect::Replace | Effect::Say { .. } => return raw.clone(),
    };
    let mut changed = raw.clone();
    json_patch::patch(&mut changed, &patch).unwrap();
    changed
}

fn orders(decision: &Decision) -> impl Iterator<Item = &Order> {
    decision.actions.iter().flat_map(|action| match &action.effect {
        Effect::Stop { orders, .. } => orders.as_slice(),
        _ => &[],
    })
}

fn has(decision: &Decision, effect: fn(&Effect) -> bool) -> bool {
    decision.actions.iter().any(|action| effect(&action.effect))
}

fn opens(effect: &Effect) -> bool {
    matches!(effect, Effect::OpenGate)
}

fn stops(effect: &Effect) -> bool {
    matches!(effect, Effect::Stop { .. })
}

fn patches(effect: &Effect) -> bool {
    !matches!(effect, Effect::TurnClassic { .. } | Effect::Replace | Effect::Say { .. })
}

fn ends(effect: &Effect) -> bool {
    matches!(effect, Effect::End)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_pod_at_the_same_time_gives_the_same_answer(pod in a_pod(), seen in a_sight()) {
        let pod = pod.build();
        prop_assert_eq!(seen.decide(&pod), seen.decide(&pod.clone()));
    }

    #[test]
    fn looking_again_is_always_ahead(pod in a_pod(), seen in a_sight()) {
        if let Some(again) = seen.decide(&pod.build()).again_at {
            prop_assert!(again > seen.now);
        }
    }

    #[test]
    fn at_most_one_change_is_made_at_a_time(pod in a_pod(), seen in a_sight()) {
        let decision = seen.decide(&pod.build());
        let changes = decision.actions.iter().filter(|action| !matches!(action.effect, Effect::Say { .. })).count();
        prop_assert!(changes <= 1, "{decision:?}");
    }

    #[test]
    fn nothing_is_ended_without_a_verdict(pod in a_pod(), seen in a_sight()) {
        let decision = seen.decide(&pod.build());
        if has(&decision, ends) {
            prop_assert!(seen.verdict.is_recorded());
            prop_assert!(decision.actions.iter().all(|action| action.effect != Effect::End || action.on_verdict));
        }
    }

    #[test]
    fn nothing_is_stopped_before_the_steps_are_done(pod in a_pod(), seen in a_sight()) {
        let pod = pod.build();
        if has(&seen.decide(&pod), stops) {
            prop_assert!(steps_done_at(&pod).is_some());
        }
    }

    #[test]
    fn without_a_verdict_only_what_keeps_the_run_from_ending_is_stopped(pod in a_pod(), seen in a_sight()) {
        let pod = pod.build();
        let decision = seen.decide(&pod);
        if has(&decision, stops) && !seen.verdict.is_recorded() {
            prop_assert!(seen.now >= steps_done_at(&pod).unwrap().checked_add(STUCK).unwrap());
            for order in orders(&decision) {
                let unstarted = classic(&pod).any(|sidecar| sidecar.index == order.index && sidecar.never_started());
                let deadlock = native(&pod).any(|sidecar| sidecar.is_running());
                let is_pending = pod.status.phase == Phase::Pending;
                let held_up = if is_pending { unstarted } else { deadlock && seen.verdict == Verdict::Withheld };
                prop_assert!(held_up);
                let confirmed = decision.actions.iter().any(|action| action.on_verdict && stops(&action.effect));
                prop_assert!(confirmed != is_pending, "that Tekton withholds its verdict must be confirmed");
            }
            let hedged =
                decision.actions.iter().any(|action| matches!(action.effect, Effect::Stop { else_end: true, .. }));
            prop_assert!(!hedged, "no pod may be ended without a verdict");
        }
    }

    #[test]
    fn no_gate_opens_once_the_run_is_over_or_cancelled(pod in a_pod(), seen in a_sight()) {
        let pod = pod.build();
        if has(&seen.decide(&pod), opens) {
            prop_assert!(!seen.verdict.is_recorded() && !tekton::is_cancelled(&pod) && gate::is_shut(&pod));
        }
    }

    #[test]
    fn only_classic_sidecars_that_nobody_spoke_for_are_stopped(pod in a_pod(), seen in a_sight()) {
        let pod = pod.build();
        for order in orders(&seen.decide(&pod)) {
            let container = &pod.spec.containers[order.index];
            prop_assert_eq!((&container.name, &container.image), (&order.name, &order.from));
            prop_assert!(!tekton::is_step(container));
            let sidecar = classic(&pod).find(|sidecar| sidecar.index == order.index).unwrap();
            prop_assert!(!sidecar.ends_by_itself(Known::builtin()));
            let ignored = pod.annotation("kickstand.dev/ignore").unwrap_or_default();
            let bare = order.name.trim_start_matches("sidecar-");
            prop_assert!(!ignored.split(',').any(|name| name.trim() == order.name || name.trim() == bare));
        }
    }

    #[test]
    fn what_is_done_is_not_proposed_again(pod in a_pod(), seen in a_sight()) {
        let raw = pod.raw();
        for action in seen.decide(&Pod::from_raw(&raw).unwrap()).actions {
            let changed = Pod::from_raw(&applied(&raw, &action.effect, &seen)).unwrap();
            let decision = seen.decide(&changed);
            match &action.effect {
                Effect::OpenGate => prop_assert!(!gate::is_shut(&changed) && !has(&decision, opens)),
                Effect::Nudge => prop_assert!(!has(&decision, |effect| *effect == Effect::Nudge)),
                Effect::End => prop_assert_eq!(decision, Decision::default()),
                Effect::Stop { orders: done, .. } => {
                    prop_assert!(orders(&decision).all(|order| done.iter().all(|done| done.index != order.index)));
                }
                Effect::TurnClassic { .. } | Effect::Replace | Effect::Say { .. } => {}
            }
        }
    }

    /// However long the queue of patches, it has an end: each sidecar is stopped at most once.
    #[test]
    fn acting_comes_to_an_end(pod in a_pod(), seen in a_sight()) {
        let mut raw = pod.raw();
        for _ in 0..8 {
            let decision = seen.decide(&Pod::from_raw(&raw).unwrap());
            let Some(change) = decision.actions.iter().find(|action| patches(&action.effect)) else {
                return Ok(());
            };
            raw = applied(&raw, &change.effect, &seen);
        }
        prop_assert!(false, "still acting");
    }

    #[test]
    fn a_patch_changes_what_it_says_and_nothing_else(pod in a_pod(), seen in a_sight()) {
        let raw = pod.raw();
        for action in seen.decide(&Pod::from_raw(&raw).unwrap()).actions {
            let mut changed = applied(&raw, &action.effect, &seen);
            match &action.effect {
                Effect::OpenGate => undo_annotation(&mut changed, &raw, "kickstand.dev/ready"),
                Effect::Nudge => undo_annotation(&mut changed, &raw, "kickstand.dev/nudged"),
                Effect::End => {
                    prop_assert_eq!(&changed["spec"]["activeDeadlineSeconds"], &json!(1));
                    undo(&mut changed["spec"], &raw["spec"], "activeDeadlineSeconds");
                }
                Effect::Stop { orders, .. } => {
                    for order in orders {
                        let container = &mut changed["spec"]["containers"][order.index];
                        prop_assert_eq!(&container["image"], order.how.image(NOP));
                        container["image"] = order.from.clone().into();
                    }
                    undo_annotation(&mut changed, &raw, "kickstand.dev/original-images");
                }
                Effect::TurnClassic { .. } | Effect::Replace | Effect::Say { .. } => {}
            }
            prop_assert_eq!(&changed, &raw);
        }
    }

    #[test]
    fn a_patch_fails_on_another_pod_or_another_container(pod in a_pod(), seen in a_sight()) {
        let raw = pod.raw();
        let pod = Pod::from_raw(&raw).unwrap();
        for action in seen.decide(&pod).actions {
            let patch = match &action.effect {
                Effect::OpenGate => patch::open_gate(&pod, seen.now),
                Effect::Nudge => patch::nudge(&pod, seen.now),
                Effect::End => patch::end(&pod),
                Effect::Stop { orders, .. } => patch::stop(&pod, orders, NOP, seen.now),
                Effect::TurnClassic { .. } | Effect::Replace | Effect::Say { .. } => continue,
            };
            let refuses = |path: &str| {
                let mut other = raw.clone();
                *other.pointer_mut(path).unwrap() = "another".into();
                let before = other.clone();
                json_patch::patch(&mut other, &patch).is_err() && other == before
            };
            prop_assert!(refuses("/metadata/uid"));
            for order in orders_of(&action.effect) {
                for field in ["name", "image"] {
                    let path = format!("/spec/containers/{}/{field}", order.index);
                    prop_assert!(refuses(&path), "{}", path);
                }
            }
        }
    }
}

fn orders_of(effect: &Effect) -> &[Order] {
    if let Effect::Stop { orders, .. } = effect { orders } else { &[] }
}

fn undo(changed: &mut Value, before: &Value, key: &str) {
    match before.get(key) {
        Some(value) => changed[key] = value.clone(),
        None => {
            changed.as_object_mut().unwrap().shift_remove(key);
        }
    }
}

fn undo_annotation(changed: &mut Value, before: &Value, key: &str) {
    undo(&mut changed["metadata"]["annotations"], &before["metadata"]["annotations"], key);
}
