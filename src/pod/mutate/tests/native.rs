//! The native strategy: the rules, one test each, and what holds of every pod, in every order of calls.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::*;
use super::{after, dead, is_gated, live, mutated, native, pod_with, set};
use crate::pod::ask::ask;

/// A pod of Tekton ≥ 0.63, with Tekton's own wait, and these beside the step.
fn pod(others: &[Value]) -> Value {
    let mut raw = pod_with(others);
    set(&mut raw, "/metadata/labels/tekton.dev~1taskRunUID", json!("u-1"));
    set(&mut raw, "/spec/initContainers", json!([{ "name": "prepare" }, { "name": "place-scripts" }]));
    let items = json!([{ "path": "ready", "fieldRef": { "fieldPath": "metadata.annotations['tekton.dev/ready']" } }]);
    set(&mut raw, "/spec/volumes/0/downwardAPI", json!({ "items": items }));
    raw
}

/// A declared sidecar that says when it is ready.
fn server(name: &str) -> Value {
    json!({ "name": format!("sidecar-{name}"), "image": "example.com/server", "readinessProbe": { "tcpSocket": { "port": 80 } } })
}

fn with(mut container: Value, key: &str, value: Value) -> Value {
    container[key] = value;
    container
}

/// As Istio injects it.
fn istio_native() -> Value {
    json!({ "name": "istio-proxy", "restartPolicy": "Always", "startupProbe": {}, "readinessProbe": {} })
}

fn insert(raw: &mut Value, list: &str, at: usize, container: Value) {
    raw["spec"][list].as_array_mut().unwrap().insert(at, container);
}

fn names(raw: &Value, list: &str) -> Vec<String> {
    let list = raw["spec"][list].as_array().into_iter().flatten();
    list.map(|container| container["name"].as_str().unwrap().to_owned()).collect()
}

fn annotated(mut raw: Value, key: &str, value: &str) -> Value {
    raw["metadata"]["annotations"][key] = value.into();
    raw
}

fn wait(raw: &Value) -> String {
    let args = super::first_args(raw).as_array().unwrap();
    args[1].as_str().unwrap().to_owned()
}

// Who is moved

#[test]
fn declared_servers_move_behind_all_init_containers_in_their_own_order_and_unchanged() {
    let raw = pod(&[server("db"), with(server("web"), "preStop", json!({ "exec": {} }))]);
    let mutation = mutated(&raw, &native());
    assert_eq!(mutation.moved, Ok(vec!["sidecar-db".into(), "sidecar-web".into()]));
    let after = after(&raw, &mutation);
    assert_eq!(names(&after, "containers"), ["step-build"]);
    assert_eq!(names(&after, "initContainers"), ["prepare", "place-scripts", "sidecar-db", "sidecar-web"]);
    let moved = &after["spec"]["initContainers"][3];
    assert_eq!(*moved, with(raw["spec"]["containers"][2].clone(), "restartPolicy", json!("Always")));
}

#[test]
fn what_is_moved_is_held_for_by_a_gate_and_by_nothing_that_could_not_be_released() {
    let raw = pod(&[server("db")]);
    let mutation = mutated(&raw, &native());
    assert_eq!(mutation.decision, Decision::Gated(vec!["sidecar-db".into()]));
    let after = after(&raw, &mutation);
    assert!(is_gated(&after));
    assert!(after["spec"]["initContainers"][2].get("startupProbe").is_none());
}

#[test]
fn the_note_says_what_was_decided() {
    let after = after(&pod(&[server("db")]), &mutated(&pod(&[server("db")]), &native()));
    let note: Value = serde_json::from_str(after["metadata"]["annotations"][INJECTED].as_str().unwrap()).unwrap();
    assert_eq!(note["strategy"], "native");
    assert_eq!(note["waitsFor"], json!(["sidecar-db"]));
    assert_eq!(note["tektonWait"], "skipped");
}

#[rstest]
#[case::no_readiness_probe(json!({ "name": "sidecar-job" }), "has no readinessProbe")]
#[case::a_startup_probe(with(server("db"), "startupProbe", json!({})), "has a startupProbe")]
#[case::a_post_start_hook(with(server("db"), "lifecycle", json!({ "postStart": { "exec": {} } })), "has a postStart hook")]
#[case::a_policy_of_its_own(with(server("db"), "restartPolicy", json!("Never")), "has a restart policy of its own")]
#[case::a_rule_of_its_own(
    with(server("db"), "restartPolicyRules", json!([{ "action": "Restart" }])),
    "has a restart policy of its own"
)]
#[case::the_results_sidecar(
    with(server("x"), "name", json!("sidecar-tekton-log-results")),
    "ends by itself: as a native sidecar it would be started again"
)]
fn with_one_that_cannot_be_moved_none_is(#[case] other: Value, #[case] why: &str) {
    let name = other["name"].as_str().unwrap().to_owned();
    let raw = pod(&[server("web"), other]);
    let mutation = mutated(&raw, &native());
    let Err(Stays::Declared(who, because)) = &mutation.moved else { panic!("{:?}", mutation.moved) };
    assert_eq!((who.as_str(), *because), (name.as_str(), why));
    let after = after(&raw, &mutation);
    assert_eq!(names(&after, "containers"), names(&raw, "containers"));
    assert!(is_gated(&after), "it is the classic strategy's");
    assert_eq!(wait(&after), "/tekton/downward/ready,/kickstand/ready");
}

#[test]
fn a_namesake_among_the_init_containers_stays_one_of_two() {
    let mut raw = pod(&[server("web")]);
    insert(&mut raw, "initContainers", 0, with(server("web"), "restartPolicy", json!("Always")));
    assert!(matches!(mutated(&raw, &native()).moved, Err(Stays::Declared(..))));
}

#[rstest]
#[case::a_classic_proxy(json!({ "name": "istio-proxy" }))]
#[case::a_helper_of_somebodys(json!({ "name": "vault-agent", "readinessProbe": {} }))]
fn beside_a_classic_container_that_is_not_the_tasks_own_nobody_is_moved(#[case] other: Value) {
    let name = other["name"].as_str().unwrap().to_owned();
    let mutation = mutated(&pod(&[server("web"), other]), &native());
    assert_eq!(mutation.moved, Err(Stays::Beside(name)));
}

#[test]
fn beside_a_native_proxy_the_declared_ones_are_moved() {
    let mut raw = pod(&[server("web")]);
    insert(&mut raw, "initContainers", 0, istio_native());
    let mutation = mutated(&raw, &native());
    assert_eq!(mutation.moved, Ok(vec!["sidecar-web".into()]));
    let after = after(&raw, &mutation);
    assert_eq!(names(&after, "initContainers"), ["istio-proxy", "prepare", "place-scripts", "sidecar-web"]);
    // The proxy's own startupProbe has held the steps by then.
    assert_eq!(mutation.decision, Decision::Gated(vec!["sidecar-web".into()]));
}

#[rstest]
#[case::gate("kickstand.dev/gate", "false")]
#[case::stop("kickstand.dev/stop", "false")]
#[case::finish("kickstand.dev/finish", "web=60s")]
#[case::ignore("kickstand.dev/ignore", "other")]
#[case::strategy("kickstand.dev/strategy", "classic")]
#[case::vault_comes("vault.hashicorp.com/agent-inject", "true")]
#[case::istio_is_wanted_classic("sidecar.istio.io/nativeSidecar", "false")]
fn an_annotation_makes_a_pod_classic(#[case] key: &str, #[case] value: &str) {
    let raw = annotated(pod(&[server("web")]), key, value);
    let mutation = mutated(&raw, &native());
    assert!(matches!(mutation.moved, Err(Stays::Asked(_) | Stays::ComesClassic(_))), "{:?}", mutation.moved);
    assert_eq!(names(&after(&raw, &mutation), "containers"), names(&raw, "containers"));
    assert!(matches!(ask(&raw, &native()).unwrap().asked, Some(Err(_))));
}

#[rstest]
#[case::kept_logs("kickstand.dev/keep-logs", "true")]
#[case::a_gate_timeout("kickstand.dev/gate-timeout", "5m")]
#[case::forced("kickstand.dev/strategy", "native")]
fn another_annotation_does_not(#[case] key: &str, #[case] value: &str) {
    let mutation = mutated(&annotated(pod(&[server("web")]), key, value), &native());
    assert_eq!(mutation.moved, Ok(vec!["sidecar-web".into()]));
}

#[rstest]
#[case::nothing_is_known_of_the_cluster(live(), Stays::Off(Off::Unknown))]
#[case::an_old_node(
    Options { native: Err(Off::Cluster("node a runs v1.32.0".into())), ..live() },
    Stays::Off(Off::Cluster("node a runs v1.32.0".into()))
)]
#[case::no_controller(Options { native: Ok(()), ..dead() }, Stays::NoController)]
fn where_native_is_not_safe_the_pod_is_as_before(#[case] options: Options<'_>, #[case] why: Stays) {
    let raw = pod(&[server("web")]);
    let mutation = mutated(&raw, &options);
    assert_eq!(mutation.moved, Err(why.clone()));
    assert_eq!(mutation.tekton_wait, TektonWait::Kept);
    assert_eq!(ask(&raw, &options).unwrap().asked, Some(Err(why)));
}

#[test]
fn an_old_tekton_which_loses_restart_policy_stays_classic() {
    let mut raw = pod(&[server("web")]);
    raw["metadata"]["labels"].as_object_mut().unwrap().shift_remove("tekton.dev/taskRunUID");
    assert_eq!(mutated(&raw, &native()).moved, Err(Stays::OldTekton));
    assert_eq!(ask(&raw, &native()).unwrap().asked, Some(Err(Stays::OldTekton)));
}

#[test]
fn where_the_gate_cannot_be_made_nobody_is_moved_since_nobody_would_wait_for_them() {
    let mut raw = pod(&[server("web")]);
    raw["spec"]["containers"][0]["volumeMounts"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "name": "x", "mountPath": "/kickstand" }));
    let mutation = mutated(&raw, &native());
    assert!(matches!(mutation.decision, Decision::Ungated(Ungated::InTheWay(_))));
    assert_eq!(mutation.patch, Patch(vec![]));
}

#[test]
fn forced_and_unsafe_says_why() {
    let raw = annotated(pod(&[server("web"), json!({ "name": "sidecar-job" })]), "kickstand.dev/strategy", "native");
    let warnings = mutated(&raw, &native()).warnings;
    assert_eq!(warnings, ["kickstand: the declared sidecars stay classic: sidecar-job has no readinessProbe"]);
}

#[test]
fn declared_ones_beside_a_gate_of_ours_are_not_moved_later() {
    let raw = pod(&[server("web"), json!({ "name": "istio-proxy" })]);
    let mut once = after(&raw, &mutated(&raw, &native()));
    // Its injector was called again, and made it native.
    once["spec"]["containers"].as_array_mut().unwrap().pop();
    insert(&mut once, "initContainers", 0, istio_native());
    let again = mutated(&once, &native());
    assert_eq!(again.moved, Err(Stays::Decided));
    assert_eq!(names(&after(&once, &again), "containers"), ["step-build", "sidecar-web"]);
}

// A webhook of old types

#[test]
fn a_sidecar_whose_restart_policy_was_taken_away_goes_back_and_stays() {
    let raw = pod(&[server("db"), server("web")]);
    let mut stripped = after(&raw, &mutated(&raw, &native()));
    for container in stripped["spec"]["initContainers"].as_array_mut().unwrap() {
        container.as_object_mut().unwrap().shift_remove("restartPolicy");
    }
    let mutation = mutated(&stripped, &native());
    assert_eq!(mutation.brought_back, ["sidecar-db", "sidecar-web"]);
    assert_eq!(mutation.moved, Err(Stays::Stripped));
    let back = after(&stripped, &mutation);
    assert_eq!(names(&back, "containers"), ["step-build", "sidecar-db", "sidecar-web"]);
    assert_eq!(names(&back, "initContainers"), ["prepare", "place-scripts"]);
    assert!(is_gated(&back));
    assert_eq!(wait(&back), "/kickstand/ready,/tekton/downward/ready", "Tekton waits again, too");
    assert_eq!(mutated(&back, &native()).patch, Patch(vec![]));
}

#[test]
fn it_goes_back_even_where_no_controller_is_known() {
    let raw = pod(&[]);
    let mut stripped = raw.clone();
    insert(&mut stripped, "initContainers", 2, server("web"));
    assert_eq!(mutated(&stripped, &dead()).brought_back, ["sidecar-web"]);
}

#[test]
fn an_init_container_of_somebody_elses_is_none_of_ours() {
    let mut raw = pod(&[]);
    insert(&mut raw, "initContainers", 2, json!({ "name": "sidecar-once" }));
    insert(&mut raw, "initContainers", 2, json!({ "name": "init-db", "readinessProbe": {} }));
    assert_eq!(mutated(&raw, &native()).brought_back, [""; 0]);
}

// Tekton's own wait

#[test]
fn tektons_wait_goes_where_every_sidecar_is_native() {
    let mut raw = pod(&[]);
    insert(&mut raw, "initContainers", 0, istio_native());
    let mutation = mutated(&raw, &native());
    assert_eq!(mutation.tekton_wait, TektonWait::Skipped);
    assert_eq!(mutation.decision, Decision::Ungated(Ungated::NobodyToAwait), "its startupProbe holds the steps");
    let after = after(&raw, &mutation);
    assert_eq!(wait(&after), "");
    assert!(!is_gated(&after));
    assert_eq!(mutated(&after, &native()).patch, Patch(vec![]));
}

#[rstest]
#[case::without_a_sidecar_nothing_is_touched(pod(&[]), native())]
#[case::beside_a_classic_one(pod(&[json!({ "name": "istio-proxy" })]), native())]
#[case::where_it_was_switched_off(pod(&[server("web")]), Options { skip_tekton_wait: false, ..native() })]
#[case::where_native_is_off(pod(&[server("web")]), live())]
fn it_stays(#[case] raw: Value, #[case] options: Options<'_>) {
    let mutation = mutated(&raw, &options);
    assert_eq!(mutation.tekton_wait, TektonWait::Kept);
    assert!(wait(&after(&raw, &mutation)).starts_with("/tekton/downward/ready"));
}

#[test]
fn it_is_put_back_when_a_classic_one_comes_later() {
    let raw = pod(&[server("web")]);
    let mut once = after(&raw, &mutated(&raw, &native()));
    assert_eq!(wait(&once), "/kickstand/ready");
    insert(&mut once, "containers", 0, json!({ "name": "istio-proxy" }));
    for options in [native(), live(), dead()] {
        let again = mutated(&once, &options);
        assert_eq!(again.tekton_wait, TektonWait::Restored);
        let mixed = after(&once, &again);
        let args = mixed["spec"]["containers"][1]["args"][1].as_str().unwrap();
        assert_eq!(args, "/kickstand/ready,/tekton/downward/ready");
        assert_eq!(again.decision, Decision::Gated(vec!["sidecar-web".into(), "istio-proxy".into()]));
        assert_eq!(mutated(&mixed, &options).patch, Patch(vec![]));
    }
}

#[test]
fn a_wait_that_tekton_did_not_want_is_not_invented() {
    // keep-pod-on-cancel: the file is there, and Tekton has said at once that the step may start.
    let mut raw = annotated(pod(&[json!({ "name": "istio-proxy" })]), "tekton.dev/ready", "READY");
    set(&mut raw, "/spec/containers/0/args", json!(["-post_file", "/tekton/run/0/out", "--", "all"]));
    let mutation = mutated(&raw, &native());
    assert_eq!(mutation.tekton_wait, TektonWait::Kept);
    assert_eq!(wait(&after(&raw, &mutation)), "/kickstand/ready");
}

// Asking

#[test]
fn injectors_are_asked_early_and_only_by_annotations() {
    let raw = annotated(pod(&[server("web")]), "dapr.io/enabled", "true");
    let asking = ask(&raw, &native()).unwrap();
    let keys = ["sidecar.istio.io/nativeSidecar", "dapr.io/enable-native-sidecar"];
    assert_eq!(asking.asked, Some(Ok(keys.map(str::to_owned).to_vec())));
    let mut after = raw.clone();
    json_patch::patch(&mut after, &asking.patch).unwrap();
    for key in keys {
        assert_eq!(after["metadata"]["annotations"][key], "true");
        after["metadata"]["annotations"].as_object_mut().unwrap().shift_remove(key);
    }
    assert_eq!(after, raw);
}

#[rstest]
#[case::one_that_cannot_be_moved(json!({ "name": "sidecar-job" }))]
#[case::another_container(json!({ "name": "helper" }))]
#[case::its_own_container_is_there_already(json!({ "name": "istio-proxy" }))]
fn nobody_is_asked_if_somebody_classic_would_stay(#[case] other: Value) {
    let asking = ask(&pod(&[server("web"), other]), &native()).unwrap();
    assert!(matches!(asking.asked, Some(Err(_))), "{:?}", asking.asked);
    assert_eq!(asking.patch, Patch(vec![]));
}

#[rstest]
#[case::an_opted_out_pod("/metadata/labels/kickstand.dev~1inject", json!("false"))]
#[case::no_task_runs("/metadata/ownerReferences", json!([]))]
fn nobody_is_asked_for_a_pod_that_is_none_of_ours(#[case] at: &str, #[case] value: Value) {
    let mut raw = pod(&[]);
    set(&mut raw, at, value);
    assert_eq!(ask(&raw, &native()).unwrap().asked, None);
}

// What holds always: injectors and others before, after and around us

/// Another webhook. Each does what one in the wild does, and is called again like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// Istio: strips what its status lists, and adds its container anew; native if it was asked.
    Istio { again: bool },
    /// Adds its container once, by name; looks only among `containers`.
    Datadog { again: bool },
    /// Adds at the end of the init containers, if asked.
    Dapr { again: bool },
    /// Adds a classic helper; skips if its status says so.
    Vault,
    /// Decodes into old types: `restartPolicy` of init containers is lost.
    Stripper { again: bool },
    /// Adds an init container of its own in front.
    Init,
}

impl Other {
    fn is_called_again(self) -> bool {
        match self {
            Self::Istio { again } | Self::Datadog { again } | Self::Dapr { again } | Self::Stripper { again } => again,
            Self::Vault | Self::Init => false,
        }
    }

    fn call(self, raw: &mut Value) {
        let note = |raw: &Value, key: &str| raw["metadata"]["annotations"][key].as_str().map(str::to_owned);
        match self {
            Self::Istio { .. } => {
                if note(raw, "sidecar.istio.io/status").is_some() {
                    for list in ["containers", "initContainers"] {
                        raw["spec"][list].as_array_mut().unwrap().retain(|it| it["name"] != "istio-proxy");
                    }
                }
                raw["metadata"]["annotations"]["sidecar.istio.io/status"] = "injected".into();
                if note(raw, "sidecar.istio.io/nativeSidecar").as_deref() == Some("true") {
                    insert(raw, "initContainers", 0, istio_native());
                } else {
                    insert(raw, "containers", 0, json!({ "name": "istio-proxy", "readinessProbe": {} }));
                }
            }
            Self::Datadog { .. } => {
                if !names(raw, "containers").iter().any(|name| name == "datadog-agent-injected") {
                    let at = names(raw, "containers").len();
                    insert(raw, "containers", at, json!({ "name": "datadog-agent-injected" }));
                }
            }
            Self::Dapr { .. } => {
                let there = [names(raw, "containers"), names(raw, "initContainers")].concat();
                if there.iter().any(|name| name == "daprd") {
                    return;
                }
                if note(raw, "dapr.io/enable-native-sidecar").as_deref() == Some("true") {
                    let at = names(raw, "initContainers").len();
                    insert(
                        raw,
                        "initContainers",
                        at,
                        json!({ "name": "daprd", "restartPolicy": "Always", "readinessProbe": {} }),
                    );
                } else {
                    let at = names(raw, "containers").len();
                    insert(raw, "containers", at, json!({ "name": "daprd", "readinessProbe": {} }));
                }
            }
            Self::Vault => {
                let at = names(raw, "containers").len();
                insert(raw, "containers", at, json!({ "name": "vault-agent" }));
            }
            Self::Stripper { .. } => {
                for container in raw["spec"]["initContainers"].as_array_mut().unwrap() {
                    container.as_object_mut().unwrap().shift_remove("restartPolicy");
                }
            }
            Self::Init => insert(raw, "initContainers", 0, json!({ "name": "istio-init" })),
        }
    }
}

/// A webhook in the chain.
#[derive(Clone, Copy, Debug)]
enum Hook {
    Early,
    Late,
    Other(Other),
}

/// What the API server does: all in their order, then once more those that want it and had been called before something
/// changed.
fn admit(raw: &Value, chain: &[Hook], options: &Options<'_>) -> Value {
    let mut raw = raw.clone();
    let mut again = vec![false; chain.len()];
    let mut called = vec![false; chain.len()];
    for round in 0..2 {
        for at in 0..chain.len() {
            if round == 1 && !again[at] {
                continue;
            }
            let before = raw.clone();
            match chain[at] {
                Hook::Early => json_patch::patch(&mut raw, &ask(&before, options).unwrap().patch).unwrap(),
                Hook::Late => json_patch::patch(&mut raw, &mutate(&before, options).unwrap().patch).unwrap(),
                Hook::Other(other) => other.call(&mut raw),
            }
            called[at] = true;
            if raw != before {
                for (other, hook) in chain.iter().enumerate() {
                    let wants = match hook {
                        Hook::Early => false,
                        Hook::Late => true,
                        Hook::Other(other) => other.is_called_again(),
                    };
                    again[other] |= other != at && called[other] && wants;
                }
            }
            if round == 1 {
                again[at] = false;
            }
        }
    }
    raw
}

fn others() -> impl Strategy<Value = Vec<Other>> {
    let one = (0..6_u8, any::<bool>()).prop_map(|(kind, again)| match kind {
        0 => Other::Istio { again },
        1 => Other::Datadog { again },
        2 => Other::Dapr { again },
        3 => Other::Vault,
        4 => Other::Stripper { again },
        _ => Other::Init,
    });
    vec(one, 0..4).prop_map(|mut others: Vec<Other>| {
        // Each is installed once.
        let mut seen = Vec::new();
        others.retain(|other| {
            let kind = std::mem::discriminant(other);
            let new = !seen.contains(&kind);
            seen.push(kind);
            new
        });
        others
    })
}

fn chain() -> impl Strategy<Value = Vec<Hook>> {
    others().prop_flat_map(|others| {
        let hooks: Vec<Hook> = others.into_iter().map(Hook::Other).chain([Hook::Early, Hook::Late]).collect();
        Just(hooks).prop_shuffle()
    })
}

fn declared() -> impl Strategy<Value = Vec<Value>> {
    let kinds = vec![
        server("db"),
        server("web"),
        json!({ "name": "sidecar-job" }),
        with(server("slow"), "startupProbe", json!({})),
    ];
    proptest::sample::subsequence(kinds, 0..=3)
}

fn annotations() -> impl Strategy<Value = Option<(&'static str, &'static str)>> {
    proptest::option::of(select(vec![
        ("dapr.io/enabled", "true"),
        ("vault.hashicorp.com/agent-inject", "true"),
        ("kickstand.dev/strategy", "native"),
        ("kickstand.dev/strategy", "classic"),
        ("kickstand.dev/gate", "false"),
    ]))
}

proptest! {
    #[test]
    fn every_container_is_there_once_and_only_what_the_rule_names_has_changed(
        declared in declared(), note in annotations(), chain in chain(), known in any::<bool>(),
    ) {
        let mut raw = pod(&declared);
        if let Some((key, value)) = note {
            raw = annotated(raw, key, value);
        }
        let options = if known { native() } else { live() };
        let done = admit(&raw, &chain, &options);
        let all = [names(&done, "containers"), names(&done, "initContainers")].concat();
        let mut unique = all.clone();
        unique.sort();
        unique.dedup();
        prop_assert_eq!(all.len(), unique.len(), "{:?}", all);
        // Without us the same others add the same containers: none is lost, none is added.
        let without: Vec<Hook> = chain.iter().copied().filter(|hook| matches!(hook, Hook::Other(_))).collect();
        let plain = admit(&raw, &without, &options);
        let mut expected = [names(&plain, "containers"), names(&plain, "initContainers")].concat();
        expected.sort();
        prop_assert_eq!(unique, expected);
        for container in &declared {
            let name = container["name"].as_str().unwrap();
            let now = ["containers", "initContainers"].iter()
                .flat_map(|list| done["spec"][list].as_array().unwrap())
                .find(|it| it["name"] == name).unwrap();
            let mut now = now.clone();
            now.as_object_mut().unwrap().shift_remove("restartPolicy");
            prop_assert_eq!(&now, container);
        }
    }

    /// A sidecar among the init containers that lost its `restartPolicy` would be refused, or would block the start.
    #[test]
    fn what_we_made_native_is_native_or_classic_in_the_end(declared in declared(), chain in chain()) {
        let done = admit(&pod(&declared), &chain, &native());
        // One that comes last of all, and is not followed by us, is the limit that the controller's memory is for.
        let last = chain.iter().rposition(|hook| matches!(hook, Hook::Other(Other::Stripper { .. })));
        let us = chain.iter().rposition(|hook| matches!(hook, Hook::Late));
        let after_us = last.is_some_and(|last| last > us.unwrap());
        let strips_again = chain.iter().any(|hook| matches!(hook, Hook::Other(Other::Stripper { again: true })));
        prop_assume!(!(after_us && strips_again));
        for container in done["spec"]["initContainers"].as_array().unwrap() {
            let name = container["name"].as_str().unwrap();
            if name.starts_with("sidecar-") {
                prop_assert_eq!(&container["restartPolicy"], "Always", "{}", done);
            }
        }
    }

    #[test]
    fn nothing_that_we_made_native_can_hold_the_start(declared in declared(), chain in chain()) {
        let done = admit(&pod(&declared), &chain, &native());
        let is_gated = is_gated(&done);
        for container in done["spec"]["initContainers"].as_array().unwrap() {
            if container["name"].as_str().unwrap().starts_with("sidecar-") {
                prop_assert!(container.get("startupProbe").is_none() && container.pointer("/lifecycle/postStart").is_none());
                prop_assert!(is_gated, "the gate waits for it");
            }
        }
    }

    #[test]
    fn steps_are_untouched_but_for_the_first_ones_wait(declared in declared(), chain in chain()) {
        let mut raw = pod(&declared);
        insert(&mut raw, "containers", 1, json!({ "name": "step-test", "command": ["/tekton/bin/entrypoint"], "args": ["-wait_file", "/tekton/run/0/out", "-post_file", "/tekton/run/1/out", "--", "-wait_file"] }));
        let second = raw["spec"]["containers"][1].clone();
        let done = admit(&raw, &chain, &native());
        let found = done["spec"]["containers"].as_array().unwrap().iter().find(|it| it["name"] == "step-test").unwrap();
        prop_assert_eq!(found, &second);
    }

    /// In a pod with a classic sidecar Tekton waits as it meant to; and somebody waits for every sidecar of the Task.
    #[test]
    fn every_declared_sidecar_is_waited_for(declared in declared(), chain in chain()) {
        let raw = pod(&declared);
        let done = admit(&raw, &chain, &native());
        let pod = Pod::from_raw(&done).unwrap();
        let classic = sidecars::classic(&pod).next().is_some();
        prop_assert!(!(classic && crate::pod::native::is_skipped(&pod)), "{}", done);
        prop_assert!(gate::tekton_waits(&pod) || gate::is_gated(&pod) || declared.is_empty(), "{}", done);
    }
}
