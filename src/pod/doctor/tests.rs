use std::slice::from_ref;

use rstest::rstest;
use serde_json::json;

use super::*;
use crate::pod::contract::INJECT;
use crate::pod::facts::Native;
use crate::pod::known::Known;
use crate::pod::mutate::{Options, mutate};
use crate::pod::native::Off;

fn options() -> Options<'static> {
    Options {
        controller_alive: true,
        native: Ok(()),
        skip_tekton_wait: true,
        known: Known::builtin(),
        gates_refused: false,
    }
}

/// The webhook's own late call.
fn called(pod: &mut Value, options: &Options<'_>) -> Vec<String> {
    let mutation = mutate(pod, options).unwrap();
    json_patch::patch(pod, &mutation.patch).unwrap();
    mutation.warnings
}

fn answered(annotations: &[(&str, &str)], options: &Options<'_>) -> (Value, Answer) {
    let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let sample = sample("nop", &annotations);
    let mut pod = sample.clone();
    let warnings = called(&mut pod, options);
    (sample, Answer::Created(Box::new(pod), warnings))
}

fn strip(pod: &mut Value) {
    for container in pod["spec"]["initContainers"].as_array_mut().into_iter().flatten() {
        container.as_object_mut().unwrap().shift_remove("restartPolicy");
    }
}

fn around() -> Around {
    let facts = Facts { native: Some(Native::Possible), ..Facts::default() };
    Around {
        namespace: "ci".into(),
        home: "kickstand-system".into(),
        lease: Lease::Held("controller-a".into(), facts),
        ..Around::default()
    }
}

/// One finding a paragraph.
fn told(sample: &Value, answers: &[Answer], around: &Around) -> String {
    let line = |finding: Finding| {
        let next = if finding.next.is_empty() { String::new() } else { format!("\n  next: {}", finding.next) };
        let passes = if finding.may_pass { " (may pass)" } else { "" };
        format!("{:?} {:?}{passes}: {}{next}", finding.level, finding.check, finding.message)
    };
    findings(sample, answers, around).into_iter().map(line).collect::<Vec<_>>().join("\n")
}

fn ten(answer: &Answer) -> Vec<Answer> {
    vec![answer.clone(); 10]
}

fn worst(sample: &Value, answers: &[Answer], around: &Around) -> Level {
    findings(sample, answers, around).iter().map(|finding| finding.level).max().unwrap()
}

#[test]
fn ten_native_pods_are_well() {
    let (sample, answer) = answered(&[], &options());
    insta::assert_snapshot!(told(&sample, &ten(&answer), &around()));
    assert_eq!(worst(&sample, &ten(&answer), &around()), Level::Ok);
}

#[test]
fn a_later_webhook_that_strips_restart_policy_is_told_of_where_the_next_call_went_back_to_classic() {
    let (sample, _) = answered(&[], &options());
    let mut pod = sample.clone();
    called(&mut pod, &options());
    strip(&mut pod);
    let warnings = called(&mut pod, &options());
    let answers = ten(&Answer::Created(Box::new(pod), warnings));
    let hooks = Hooks { ours: Ours::Asks, others: vec!["berglas".into(), "istio-sidecar-injector".into()] };
    insta::assert_snapshot!(told(&sample, &answers, &Around { hooks: Some(hooks), ..around() }));
    assert_eq!(worst(&sample, &answers, &around()), Level::Warning);
}

const REFUSED: &str = "Pod \"kickstand-doctor\" is invalid: spec.initContainers[0].readinessProbe: Forbidden: may not be set for \
                       init containers without restartPolicy=Always";

#[rstest]
#[case::stripped("stripped", REFUSED)]
#[case::no_right(
    "no-right",
    "pods is forbidden: User \"ann\" cannot create resource \"pods\" in API group \"\" in the namespace \"ci\""
)]
#[case::no_dry_run("no-dry-run", "admission webhook \"a.example\" does not support dry run")]
#[case::a_policy("a-policy", "admission webhook \"policy.example\" denied the request: images must be signed")]
#[case::too_new(
    "too-new",
    "pods \"x\" is forbidden: error looking up service account ci/default: serviceaccount \"default\" not found"
)]
fn a_refusal_is_told_in_the_api_servers_words(#[case] name: &str, #[case] words: &str) {
    let (sample, _) = answered(&[], &options());
    let answers = [Answer::Refused(words.into())];
    insta::assert_snapshot!(format!("refused-{name}"), told(&sample, &answers, &around()));
    assert_eq!(worst(&sample, &answers, &around()), Level::Error);
}

#[rstest]
#[case::nobody_can_look("unknown", None, None)]
#[case::no_label("no-label", Some(&[][..]), None)]
#[case::opted_out("opted-out", Some(&[(INJECT, "false")][..]), Some(Ours::Elsewhere))]
#[case::labelled("labelled", Some(&[(INJECT, "true")][..]), None)]
#[case::not_installed("not-installed", Some(&[(INJECT, "true")][..]), Some(Ours::Missing))]
#[case::elsewhere("elsewhere", Some(&[][..]), Some(Ours::Elsewhere))]
#[case::no_certificate("no-certificate", Some(&[(INJECT, "true")][..]), Some(Ours::Untrusted))]
#[case::fails("fails", Some(&[(INJECT, "true")][..]), Some(Ours::Asks))]
fn a_pod_that_came_back_as_it_went_was_not_seen_by_the_webhook(
    #[case] name: &str,
    #[case] labels: Option<&[(&str, &str)]>,
    #[case] ours: Option<Ours>,
) {
    let (sample, _) = answered(&[], &options());
    let answer = Answer::Created(Box::new(sample.clone()), Vec::new());
    let labels = labels.map(|all| all.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect());
    let hooks = ours.map(|ours| Hooks { ours, others: Vec::new() });
    let around = Around { labels, hooks, ..around() };
    insta::assert_snapshot!(format!("not-called-{name}"), told(&sample, &ten(&answer), &around));
}

#[rstest]
#[case::no_controller("no-controller", Options { controller_alive: false, ..options() })]
#[case::gates_refused("gates-refused", Options { gates_refused: true, ..options() })]
fn a_step_that_is_not_held_is_told_of_in_the_webhooks_words(#[case] name: &str, #[case] options: Options<'_>) {
    let (sample, answer) = answered(&[], &options);
    insta::assert_snapshot!(format!("not-held-{name}"), told(&sample, from_ref(&answer), &around()));
    assert_eq!(worst(&sample, from_ref(&answer), &around()), Level::Error);
}

#[rstest]
#[case::unknown("unknown", Off::Unknown, Level::Warning)]
#[case::an_old_node("an-old-node", Off::Cluster("node a runs v1.30.0".into()), Level::Warning)]
#[case::refused("refused", Off::Refused("a webhook takes restartPolicy away from init containers".into()), Level::Warning)]
#[case::switched_off("switched-off", Off::Setting, Level::Ok)]
fn a_classic_sidecar_is_told_of_with_its_reason(#[case] name: &str, #[case] off: Off, #[case] level: Level) {
    let (sample, answer) = answered(&[], &Options { native: Err(off), ..options() });
    let blind = Around { lease: Lease::Held("controller-a".into(), Facts::default()), ..around() };
    insta::assert_snapshot!(
        format!("classic-{name}"),
        format!("{}\n---\n{}", told(&sample, from_ref(&answer), &around()), told(&sample, from_ref(&answer), &blind))
    );
    assert_eq!(worst(&sample, from_ref(&answer), &around()), level);
}

#[rstest]
#[case("kickstand.dev/strategy", "classic")]
#[case("kickstand.dev/gate", "false")]
#[case("kickstand.dev/finish", "web=5s")]
fn what_the_annotations_ask_for_is_well(#[case] key: &str, #[case] value: &str) {
    let (sample, answer) = answered(&[(key, value)], &options());
    let told = told(&sample, from_ref(&answer), &around());
    assert_eq!(worst(&sample, from_ref(&answer), &around()), Level::Ok, "{told}");
    assert!(told.contains(key), "{told}");
}

#[test]
fn a_slip_in_an_annotation_is_told_of_once() {
    let (sample, answer) = answered(&[("kickstand.dev/gate-timeout", "soon")], &options());
    let told = told(&sample, &ten(&answer), &around());
    assert_eq!(told.matches("gate-timeout").count(), 1, "{told}");
}

#[test]
fn replicas_that_disagree_are_counted_and_may_agree_soon() {
    let (sample, answer) = answered(&[], &options());
    let mut answers = ten(&answer);
    answers[3] = Answer::Created(Box::new(sample.clone()), Vec::new());
    answers[7] = answered(&[], &Options { native: Err(Off::Unknown), ..options() }).1;
    insta::assert_snapshot!(told(&sample, &answers, &around()));
}

#[test]
fn a_gate_that_lost_its_volume_or_its_mount_would_hold_for_ever() {
    let (sample, answer) = answered(&[], &options());
    let Answer::Created(pod, warnings) = answer else { panic!() };
    for path in ["/spec/volumes", "/spec/containers/0/volumeMounts"] {
        let mut pod = pod.clone();
        *pod.pointer_mut(path).unwrap() = json!([]);
        let told = told(&sample, &[Answer::Created(pod, warnings.clone())], &around());
        assert!(told.contains("Error Held: the first step would wait for ever"), "{told}");
    }
}

#[test]
fn a_gate_that_was_taken_away_whole_is_told_of() {
    let (sample, answer) = answered(&[], &options());
    let Answer::Created(pod, _) = answer else { panic!() };
    let mut gone = sample.clone();
    gone["metadata"]["annotations"] = pod["metadata"]["annotations"].clone();
    let told = told(&sample, &[Answer::Created(Box::new(gone), Vec::new())], &around());
    assert!(told.contains("Error Held: the first step does not wait, though"), "{told}");
}

#[test]
fn a_classic_sidecar_beside_a_native_one_is_named() {
    let (sample, answer) = answered(&[], &options());
    let Answer::Created(mut pod, warnings) = answer else { panic!() };
    pod["spec"]["containers"].as_array_mut().unwrap().push(json!({ "name": "late-proxy", "image": "x" }));
    let told = told(&sample, &[Answer::Created(pod, warnings)], &around());
    assert!(told.contains("Warning Native") && told.contains("late-proxy"), "{told}");
}

#[rstest]
#[case::unread(Lease::Unread("leases is forbidden".into()), Level::Warning)]
#[case::nobody(Lease::Held(String::new(), Facts::default()), Level::Error)]
#[case::says_nothing_yet(Lease::Held("a".into(), Facts::default()), Level::Warning)]
fn the_controllers_lease_is_told_of(#[case] lease: Lease, #[case] level: Level) {
    let (sample, answer) = answered(&[], &options());
    let found = findings(&sample, from_ref(&answer), &Around { lease, ..around() });
    let controller = found.iter().find(|finding| finding.check == Check::Controller).unwrap();
    assert_eq!(controller.level, level, "{controller:?}");
    assert!(!controller.next.is_empty());
}

#[test]
fn without_an_answer_nothing_is_well() {
    let (sample, _) = answered(&[], &options());
    let told = told(&sample, &[Answer::None("no answer in 30 s".into())], &around());
    assert!(told.starts_with("Error Created (may pass): dry runs are not answered: no answer in 30 s"), "{told}");
}
