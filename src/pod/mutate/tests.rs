//! The rules of the gate, one test each; whole pods are in `snapshots`, what holds of every pod in `properties`.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

use json_patch::PatchOperation;

mod native;
mod properties;
mod snapshots;

/// A live controller, on a cluster of which nothing more is known.
pub(super) fn live() -> Options<'static> {
    Options {
        controller_alive: true,
        gates_refused: false,
        native: Err(Off::Unknown),
        skip_tekton_wait: true,
        known: Known::builtin(),
    }
}

/// And one that can run native sidecars.
pub(super) fn native() -> Options<'static> {
    Options { native: Ok(()), ..live() }
}

fn refused() -> Options<'static> {
    Options { gates_refused: true, ..live() }
}

pub(super) fn dead() -> Options<'static> {
    Options { controller_alive: false, ..live() }
}

/// A TaskRun's pod as Tekton makes it today: one step that waits for Tekton's own file, and these beside it.
fn pod_with(others: &[Value]) -> Value {
    let mut containers = vec![json!({
        "name": "step-build",
        "command": ["/tekton/bin/entrypoint"],
        "args": [
            "-wait_file", "/tekton/downward/ready", "-wait_file_content", "-post_file", "/tekton/run/0/out",
            "-entrypoint", "make", "--", "all",
        ],
        "volumeMounts": [{ "name": "tekton-internal-downward", "mountPath": "/tekton/downward" }],
    })];
    containers.extend_from_slice(others);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "build-pod",
            "labels": { "tekton.dev/taskRun": "build" },
            "annotations": { "pipeline.tekton.dev/release": "3ee1745" },
            "ownerReferences": [
                { "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": "build", "uid": "u-1", "controller": true },
            ],
        },
        "spec": { "containers": containers, "volumes": [{ "name": "tekton-internal-downward" }] },
    })
}

/// The same with one sidecar, and one change.
fn changed(at: &str, value: Value) -> Value {
    let mut raw = pod_with(&[sidecar("sidecar-web")]);
    set(&mut raw, at, value);
    raw
}

/// Sets what a pointer points at; the last part may be new.
fn set(raw: &mut Value, at: &str, value: Value) {
    if let Some(place) = raw.pointer_mut(at) {
        *place = value;
    } else {
        let (parent, key) = at.rsplit_once('/').unwrap();
        raw.pointer_mut(parent).unwrap()[key.replace("~1", "/")] = value;
    }
}

fn sidecar(name: &str) -> Value {
    json!({ "name": name, "image": "example.com/sidecar" })
}

fn mutated(raw: &Value, options: &Options<'_>) -> Mutation {
    mutate(raw, options).unwrap()
}

/// The pod after its mutation.
pub(super) fn after(raw: &Value, mutation: &Mutation) -> Value {
    let mut raw = raw.clone();
    json_patch::patch(&mut raw, &mutation.patch).unwrap();
    raw
}

/// The pod after a mutation with a live controller.
fn gated(raw: &Value) -> Value {
    after(raw, &mutated(raw, &live()))
}

pub(super) fn is_gated(raw: &Value) -> bool {
    gate::is_gated(&Pod::from_raw(raw).unwrap())
}

fn awaited(raw: &Value) -> Vec<String> {
    match mutated(raw, &live()).decision {
        Decision::Gated(waits_for) => waits_for,
        Decision::Ungated(why) => panic!("not gated: {why}"),
    }
}

fn why_ungated(raw: &Value, options: &Options<'_>) -> Ungated {
    match mutated(raw, options).decision {
        Decision::Gated(waits_for) => panic!("gated, waits for {waits_for:?}"),
        Decision::Ungated(why) => why,
    }
}

/// Nothing is changed, and nothing is said; for this reason.
fn untouched(mutation: &Mutation) -> Option<&Ungated> {
    let Decision::Ungated(why) = &mutation.decision else { return None };
    (mutation.patch == Patch(vec![]) && mutation.warnings.is_empty()).then_some(why)
}

fn first_args(raw: &Value) -> &Value {
    let steps = raw["spec"]["containers"].as_array().unwrap();
    &steps.iter().find(|container| container["name"] == "step-build").unwrap()["args"]
}

// Eligible

#[rstest]
#[case::an_affinity_assistant("/metadata/labels", json!({ "tekton.dev/pipelineRun": "p" }))]
#[case::a_plain_jobs("/metadata/ownerReferences/0", json!({ "apiVersion": "batch/v1", "kind": "Job", "controller": true }))]
#[case::nobodys("/metadata/ownerReferences", Value::Null)]
#[case::of_tekton_0_8("/spec/containers/0/command", json!(["/builder/tools/entrypoint"]))]
fn a_pod_that_is_not_a_task_runs_is_untouched_and_silent(#[case] at: &str, #[case] value: Value) {
    let mut raw = changed(at, value);
    // Not even what is ours in others.
    set(&mut raw, "/metadata/annotations/kickstand.dev~1ready", json!("2026-01-15T10:00:00Z"));
    set(&mut raw, "/metadata/annotations/kickstand.dev~1gate", json!("nonsense"));
    let mutation = mutated(&raw, &live());
    assert!(matches!(mutation.decision, Decision::Ungated(Ungated::NotOurs(_))), "{:?}", mutation.decision);
    assert_eq!((mutation.patch, mutation.warnings), (Patch(vec![]), vec![]));
}

#[test]
fn an_opted_out_pod_is_untouched_and_silent() {
    let mut raw = changed("/metadata/labels/kickstand.dev~1inject", json!("false"));
    set(&mut raw, "/metadata/annotations/kickstand.dev~1gate", json!("nonsense"));
    assert_eq!(untouched(&mutated(&raw, &live())), Some(&Ungated::OptedOut));
}

#[test]
fn a_pod_without_sidecars_is_untouched_and_silent() {
    assert_eq!(untouched(&mutated(&pod_with(&[]), &live())), Some(&Ungated::NobodyToAwait));
    assert_eq!(untouched(&mutated(&pod_with(&[]), &dead())), Some(&Ungated::NobodyToAwait));
}

#[test]
fn what_is_no_pod_is_an_error_and_no_panic() {
    assert!(mutate(&changed("/spec/containers/0/args", json!("-post_file")), &live()).is_err());
}

// The gate

#[test]
fn the_first_step_gets_a_volume_a_mount_and_its_file_merged_into_the_wait() {
    let after = gated(&pod_with(&[sidecar("sidecar-web")]));
    assert_eq!(after["spec"]["volumes"][1], gate::volume());
    assert_eq!(after["spec"]["containers"][0]["volumeMounts"][1], gate::mount());
    assert_eq!(
        first_args(&after),
        &json!([
            "-wait_file",
            "/tekton/downward/ready,/kickstand/ready",
            "-wait_file_content",
            "-post_file",
            "/tekton/run/0/out",
            "-entrypoint",
            "make",
            "--",
            "all",
        ])
    );
    assert!(is_gated(&after));
}

#[test]
fn a_first_step_that_waits_for_nothing_gets_a_wait_in_front() {
    // Tekton ≥ 0.38 with running-in-environment-with-injected-sidecars or await-sidecar-readiness "false".
    let after = gated(&changed("/spec/containers/0/args", json!(["-post_file", "/tekton/run/0/out", "--", "all"])));
    let args =
        json!(
            ["-wait_file", "/kickstand/ready", "-wait_file_content", "-post_file", "/tekton/run/0/out", "--", "all",]
        );
    assert_eq!(first_args(&after), &args);
    assert!(is_gated(&after));
}

#[test]
fn a_downward_volume_alone_is_no_wait() {
    // keep-pod-on-cancel mounts it in every step, also where the first one waits for nothing.
    let mut raw = changed("/spec/containers/0/args", json!(["-post_file", "/tekton/run/0/out", "--"]));
    set(&mut raw, "/metadata/annotations/tekton.dev~1ready", json!("READY"));
    set(
        &mut raw,
        "/spec/volumes/0",
        json!({ "name": "tekton-internal-downward", "downwardAPI": { "items": [
        { "path": "ready", "fieldRef": { "fieldPath": "metadata.annotations['tekton.dev/ready']" } },
        { "path": "cancel", "fieldRef": { "fieldPath": "metadata.annotations['tekton.dev/cancel']" } },
    ] } }),
    );
    let after = gated(&raw);
    assert_eq!(
        first_args(&after),
        &json!(["-wait_file", "/kickstand/ready", "-wait_file_content", "-post_file", "/tekton/run/0/out", "--"])
    );
}

#[test]
fn a_proxy_that_stands_first_is_awaited_and_not_gated() {
    let mut raw = pod_with(&[]);
    raw["spec"]["containers"].as_array_mut().unwrap().insert(0, sidecar("istio-proxy"));
    assert_eq!(awaited(&raw), ["istio-proxy"]);
    let after = gated(&raw);
    assert_eq!(after["spec"]["containers"][0], raw["spec"]["containers"][0]);
    assert!(is_gated(&after));
}

#[test]
fn other_steps_keep_their_arguments() {
    let second = json!({
        "name": "step-test",
        "command": ["/tekton/bin/entrypoint"],
        "args": ["-wait_file", "/tekton/run/0/out", "-post_file", "/tekton/run/1/out", "--"],
    });
    let after = gated(&pod_with(&[second.clone(), sidecar("sidecar-web")]));
    assert_eq!(after["spec"]["containers"][1], second);
}

#[test]
fn what_the_user_wrote_behind_the_flags_is_never_touched() {
    let users = ["-wait_file", "/a", "-wait_file_content", "-post_file", "/tekton/run/0/out", "--", "-wait_file=/b"];
    let mut args = vec!["-post_file", "/tekton/run/0/out", "--"];
    args.extend(users);
    let after = gated(&changed("/spec/containers/0/args", json!(args)));
    let after = first_args(&after).as_array().unwrap();
    assert_eq!(after[6..], json!(users).as_array().unwrap()[..]);
}

#[rstest]
#[case::absent(json!({}))]
#[case::null(json!({ "annotations": null }))]
#[case::empty(json!({ "annotations": {} }))]
fn the_map_of_annotations_may_be_missing(#[case] part: Value) {
    // Tekton 0.9 writes none.
    let mut raw = pod_with(&[sidecar("sidecar-web")]);
    let metadata = raw["metadata"].as_object_mut().unwrap();
    metadata.shift_remove("annotations");
    metadata.extend(part.as_object().unwrap().clone());
    let after = gated(&raw);
    assert_eq!(after["metadata"]["annotations"].as_object().unwrap().len(), 1);
    assert!(is_gated(&after));
}

#[rstest]
#[case::absent(None)]
#[case::null(Some(Value::Null))]
#[case::empty(Some(json!([])))]
fn the_lists_of_volumes_and_mounts_may_be_missing(#[case] list: Option<Value>) {
    let mut raw = pod_with(&[sidecar("sidecar-web")]);
    for (parent, key) in [("/spec", "volumes"), ("/spec/containers/0", "volumeMounts")] {
        let parent = raw.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        parent.shift_remove(key);
        parent.extend(list.clone().map(|list| (key.to_owned(), list)));
    }
    let after = gated(&raw);
    assert_eq!(after["spec"]["volumes"], json!([gate::volume()]));
    assert_eq!(after["spec"]["containers"][0]["volumeMounts"], json!([gate::mount()]));
}

#[test]
fn the_note_says_what_was_decided_and_for_whom_it_waits() {
    let after = gated(&pod_with(&[sidecar("sidecar-web"), sidecar("istio-proxy")]));
    let note: Value = serde_json::from_str(after["metadata"]["annotations"][INJECTED].as_str().unwrap()).unwrap();
    let expected = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "strategy": "classic",
        "gate": "/kickstand/ready",
        "waitsFor": ["sidecar-web", "istio-proxy"],
    });
    assert_eq!(note, expected);
}

#[test]
fn a_gate_without_a_warning_is_the_normal_case() {
    assert_eq!(mutated(&pod_with(&[sidecar("sidecar-web")]), &live()).warnings, [""; 0]);
}

// Whom to wait for

#[rstest]
#[case::with_a_readiness_probe(json!({ "readinessProbe": {} }), true)]
#[case::with_a_startup_probe_which_holds_the_start_itself(json!({ "startupProbe": {} }), false)]
#[case::with_both(json!({ "readinessProbe": {}, "startupProbe": {} }), false)]
#[case::with_none(json!({}), false)]
#[case::with_a_null_one(json!({ "readinessProbe": null }), false)]
fn a_native_sidecar_is_awaited(#[case] probes: Value, #[case] is_awaited: bool) {
    let mut native = json!({ "name": "native", "restartPolicy": "Always" });
    native.as_object_mut().unwrap().extend(probes.as_object().unwrap().clone());
    let mut raw = pod_with(&[sidecar("classic")]);
    set(&mut raw, "/spec/initContainers", json!([native]));
    let expected: &[&str] = if is_awaited { &["native", "classic"] } else { &["classic"] };
    assert_eq!(awaited(&raw), expected);
}

#[test]
fn native_sidecars_that_are_not_awaited_need_no_gate() {
    let mut raw = pod_with(&[]);
    set(
        &mut raw,
        "/spec/initContainers",
        json!([{ "name": "istio-proxy", "restartPolicy": "Always", "startupProbe": {} }]),
    );
    assert_eq!(untouched(&mutated(&raw, &live())), Some(&Ungated::NobodyToAwait));
}

#[test]
fn an_init_container_that_ends_is_no_sidecar() {
    let mut raw = pod_with(&[]);
    set(&mut raw, "/spec/initContainers", json!([{ "name": "istio-init", "readinessProbe": {} }]));
    assert_eq!(untouched(&mutated(&raw, &live())), Some(&Ungated::NobodyToAwait));
}

#[rstest]
#[case::with_the_prefix("sidecar-web")]
#[case::without("web")]
#[case::among_others("vault-agent, web")]
fn an_ignored_sidecar_is_not_awaited(#[case] value: &str) {
    let mut raw = pod_with(&[sidecar("sidecar-web"), sidecar("istio-proxy")]);
    set(&mut raw, "/metadata/annotations/kickstand.dev~1ignore", json!(value));
    assert_eq!(awaited(&raw), ["istio-proxy"]);
}

#[test]
fn where_everybody_is_ignored_nothing_is_patched() {
    let raw = changed("/metadata/annotations/kickstand.dev~1ignore", json!("web"));
    assert_eq!(untouched(&mutated(&raw, &live())), Some(&Ungated::NobodyToAwait));
}

#[test]
fn an_ignored_native_sidecar_is_not_awaited() {
    let mut raw = changed("/metadata/annotations/kickstand.dev~1ignore", json!("daprd,web"));
    set(
        &mut raw,
        "/spec/initContainers",
        json!([{ "name": "daprd", "restartPolicy": "Always", "readinessProbe": {} }]),
    );
    assert_eq!(why_ungated(&raw, &live()), Ungated::NobodyToAwait);
}

#[test]
fn tektons_own_results_sidecar_is_awaited_like_any_other() {
    assert_eq!(awaited(&pod_with(&[sidecar("sidecar-tekton-log-results")])), ["sidecar-tekton-log-results"]);
}

#[test]
fn an_annotation_switches_the_gate_off_without_a_warning() {
    let raw = changed("/metadata/annotations/kickstand.dev~1gate", json!("false"));
    assert_eq!(untouched(&mutated(&raw, &live())), Some(&Ungated::GateOff));
}

// What is preset, and what is malformed

#[rstest]
#[case::that_is_gated(pod_with(&[sidecar("sidecar-web")]))]
#[case::that_is_not(pod_with(&[]))]
#[case::whose_gate_is_off(changed("/metadata/annotations/kickstand.dev~1gate", json!("false")))]
fn preset_annotations_of_ours_are_removed_from_a_pod(#[case] mut raw: Value) {
    set(&mut raw, "/metadata/annotations/kickstand.dev~1ready", json!("2026-01-15T10:00:00Z"));
    set(&mut raw, "/metadata/annotations/kickstand.dev~1original-images", json!("{}"));
    for options in [&live(), &dead()] {
        let after = after(&raw, &mutated(&raw, options));
        let annotations = after["metadata"]["annotations"].as_object().unwrap();
        assert!(!annotations.contains_key(READY) && !annotations.contains_key(ORIGINAL_IMAGES), "{annotations:?}");
        assert!(annotations.contains_key("pipeline.tekton.dev/release"));
    }
}

#[rstest]
#[case::gate("gate", "maybe")]
#[case::stop("stop", "")]
#[case::gate_timeout("gate-timeout", "5 parsecs")]
#[case::finish("finish", "web")]
#[case::keep_logs("keep-logs", "yes")]
fn a_malformed_annotation_warns_and_the_default_holds(#[case] name: &str, #[case] value: &str) {
    let raw = changed(&format!("/metadata/annotations/kickstand.dev~1{name}"), json!(value));
    let mutation = mutated(&raw, &live());
    assert_eq!(mutation.decision, Decision::Gated(vec!["sidecar-web".into()]));
    assert_eq!(mutation.warnings.len(), 1);
    assert!(mutation.warnings[0].starts_with(&format!("kickstand: annotation kickstand.dev/{name}: \"{value}\" ")));
}

// What keeps a gate away

#[test]
fn without_a_live_controller_there_is_no_gate_but_a_warning() {
    let mutation = mutated(&pod_with(&[sidecar("sidecar-web")]), &dead());
    assert_eq!((&mutation.patch, &mutation.decision), (&Patch(vec![]), &Decision::Ungated(Ungated::NoController)));
    insta::assert_snapshot!(mutation.warnings.join("\n"), @"kickstand: the first step does not wait for its sidecars: no live controller is known, which would open the gate");
}

#[test]
fn a_gate_of_an_earlier_call_stays_when_the_controller_is_gone() {
    let gated = gated(&pod_with(&[sidecar("sidecar-web")]));
    let mutation = mutated(&gated, &dead());
    assert_eq!(mutation.decision, Decision::Gated(vec!["sidecar-web".into()]));
    assert_eq!((mutation.patch, mutation.warnings), (Patch(vec![]), vec![]));
}

#[rstest]
#[case::the_volume(|pod: &mut Value| { pod["spec"]["volumes"].as_array_mut().unwrap().pop(); })]
#[case::the_mount(|pod: &mut Value| { pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap().pop(); })]
fn a_gate_that_another_webhook_took_a_part_of_is_made_whole(#[case] take: fn(&mut Value)) {
    // Whoever is called last and leaves it so would leave a step that waits for a file that nobody can make.
    let whole = gated(&pod_with(&[sidecar("sidecar-web")]));
    let mut broken = whole.clone();
    take(&mut broken);
    for options in [&live(), &dead()] {
        assert_eq!(after(&broken, &mutated(&broken, options)), whole);
    }
}

#[test]
fn where_no_step_runs_first_there_is_no_gate_but_a_warning() {
    let raw = changed("/spec/containers/0/args", json!(["-post_file", "/tekton/run/1/out", "--"]));
    let mutation = mutated(&raw, &live());
    assert_eq!((mutation.patch.is_empty(), mutation.warnings.len()), (true, 1));
    assert_eq!(mutation.decision, Decision::Ungated(Ungated::NoFirstStep));
}

#[rstest]
#[case::a_volume_of_its_name(
    "/spec/volumes/0", json!({ "name": "kickstand-gate", "emptyDir": {} }), "its volume kickstand-gate is in the gate's way"
)]
#[case::a_mount_at_its_place(
    "/spec/containers/0/volumeMounts/0", json!({ "name": "data", "mountPath": "/kickstand" }),
    "its mount at /kickstand is in the gate's way"
)]
#[case::a_mount_inside_its_place(
    "/spec/containers/0/volumeMounts/0", json!({ "name": "data", "mountPath": "/kickstand/cache" }),
    "its mount at /kickstand is in the gate's way"
)]
#[case::a_wait_that_we_do_not_know(
    "/spec/containers/0/args", json!(["-wait_file", "/a", "-post_file", "/tekton/run/0/out", "--"]),
    "its first step waits for a file without -wait_file_content"
)]
#[case::a_wait_for_nothing_at_all(
    "/spec/containers/0/args", json!(["-post_file", "/tekton/run/0/out", "-wait_file_content", "-wait_file"]),
    "its first step has a -wait_file without a value"
)]
fn what_is_in_the_gates_way_keeps_it_away_with_a_warning(#[case] at: &str, #[case] value: Value, #[case] why: &str) {
    let mutation = mutated(&changed(at, value), &live());
    assert_eq!(mutation.patch, Patch(vec![]));
    assert_eq!(mutation.warnings, [format!("kickstand: the first step does not wait for its sidecars: {why}")]);
}

#[test]
fn a_mount_at_our_place_in_another_container_is_not_in_the_way() {
    let mut web = sidecar("sidecar-web");
    web["volumeMounts"] = json!([{ "name": "data", "mountPath": "/kickstand" }]);
    assert!(is_gated(&gated(&pod_with(&[web]))));
}

// A second call

#[test]
fn a_second_call_on_our_own_output_patches_nothing() {
    let once = gated(&pod_with(&[sidecar("sidecar-web")]));
    assert_eq!(mutated(&once, &live()).patch, Patch(vec![]));
}

#[test]
fn a_second_call_knows_our_volume_with_the_api_servers_defaults() {
    let mut once = gated(&pod_with(&[sidecar("sidecar-web")]));
    set_defaults(&mut once);
    assert_eq!(mutated(&once, &live()).patch, Patch(vec![]));
    assert_eq!(mutated(&once, &live()).decision, Decision::Gated(vec!["sidecar-web".into()]));
}

/// What the API server adds to a pod between two calls, as far as it is ours.
pub(super) fn set_defaults(raw: &mut Value) {
    let volumes = raw["spec"]["volumes"].as_array_mut();
    for volume in volumes.into_iter().flatten().filter(|volume| **volume == gate::volume()) {
        volume["downwardAPI"]["defaultMode"] = json!(420);
        volume["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"] = json!("v1");
    }
}

#[test]
fn a_container_that_was_injected_since_changes_only_the_note() {
    let mut once = gated(&pod_with(&[sidecar("sidecar-web")]));
    once["spec"]["containers"].as_array_mut().unwrap().push(sidecar("vault-agent"));
    let mutation = mutated(&once, &live());
    assert_eq!(mutation.decision, Decision::Gated(vec!["sidecar-web".into(), "vault-agent".into()]));
    let [PatchOperation::Add(note)] = mutation.patch.0.as_slice() else { panic!("{:?}", mutation.patch) };
    assert_eq!(note.path.as_str(), "/metadata/annotations/kickstand.dev~1injected");
    assert!(note.value.as_str().unwrap().contains(r#""waitsFor":["sidecar-web","vault-agent"]"#));
}

#[test]
fn a_gate_comes_on_a_second_call_if_the_first_saw_nobody() {
    let mut raw = pod_with(&[]);
    assert_eq!(mutated(&raw, &live()).patch, Patch(vec![]));
    raw["spec"]["containers"].as_array_mut().unwrap().insert(0, sidecar("istio-proxy"));
    assert!(is_gated(&gated(&raw)));
}

#[test]
fn an_opt_out_that_appears_later_leaves_the_gate_to_the_controller() {
    let mut once = gated(&pod_with(&[sidecar("sidecar-web")]));
    set(&mut once, "/metadata/annotations/kickstand.dev~1gate", json!("false"));
    assert_eq!(untouched(&mutated(&once, &live())), Some(&Ungated::GateOff));
    assert!(is_gated(&once));
}

#[test]
fn where_gates_could_not_be_opened_lately_none_is_added_and_the_user_is_told() {
    let raw = pod_with(&[sidecar("sidecar-web")]);
    let mutation = mutated(&raw, &refused());
    assert_eq!((mutation.patch, mutation.decision), (Patch(vec![]), Decision::Ungated(Ungated::GatesRefused)));
    insta::assert_snapshot!(mutation.warnings.join("\n"), @"kickstand: the first step does not wait for its sidecars: the API server refused to have gates opened in this namespace (by its permissions or a policy; see the Events KickstandStopRefused there)");
    assert_eq!(mutated(&gated(&raw), &refused()).patch, Patch(vec![]), "one of an earlier call stays");
    assert_eq!(untouched(&mutated(&pod_with(&[]), &refused())), Some(&Ungated::NobodyToAwait));
}

#[test]
fn a_pod_of_too_many_containers_is_left_as_it_is_and_the_user_is_told() {
    let others = |count: usize| (0..count).map(|at| sidecar(&format!("sidecar-{at}"))).collect::<Vec<_>>();
    let mut raw = pod_with(&others(MOST_CONTAINERS - 1));
    assert!(is_gated(&gated(&raw)));
    raw["spec"]["initContainers"] = json!([{ "name": "one-more" }]);
    let mutation = mutated(&raw, &live());
    assert_eq!(
        (mutation.patch, mutation.decision),
        (Patch(vec![]), Decision::Ungated(Ungated::TooManyContainers(257)))
    );
    insta::assert_snapshot!(mutation.warnings.join("\n"), @"kickstand: the first step does not wait for its sidecars: it has 257 containers, and pods of more than 256 are left as they are");
}

// What is counted

#[test]
fn every_reason_has_its_own_label_and_only_what_somebody_should_hear_is_said() {
    let reasons = [
        (Ungated::NotOurs(NotOurs::NoLabel), true),
        (Ungated::OptedOut, true),
        (Ungated::GateOff, true),
        (Ungated::NobodyToAwait, true),
        (Ungated::NoFirstStep, false),
        (Ungated::NoController, false),
        (Ungated::GatesRefused, false),
        (Ungated::TooManyContainers(257), false),
        (Ungated::InTheWay("volume"), false),
        (Ungated::Entrypoint(entrypoint::Unknown::NoValue), false),
    ];
    let labels: std::collections::BTreeSet<&str> = reasons.iter().map(|(why, _)| why.as_label()).collect();
    assert_eq!(labels.len(), reasons.len());
    for (why, silent) in reasons {
        assert_eq!(why.is_silent(), silent, "{why}");
    }
}
