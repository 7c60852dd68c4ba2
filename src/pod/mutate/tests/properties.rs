//! What holds of every pod: of those of the fixtures, and of what other webhooks and people might make of them.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use super::super::*;
use super::{after, dead, is_gated, live, native, set_defaults};
use crate::pod::contract::{FINISH, GATE, GATE_TIMEOUT, IGNORE, STOP};
use crate::pod::entrypoint::Flags;

static FIXTURES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let mut pods = Vec::new();
    read_into(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tekton"), &mut pods);
    read_into(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/injected"), &mut pods);
    pods
});

fn read_into(folder: &Path, pods: &mut Vec<Value>) {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read_into(&path, pods);
        } else {
            pods.push(serde_json::from_slice(&fs::read(path).unwrap()).unwrap());
        }
    }
}

// Pods

/// What may happen to a pod before it comes to us.
#[derive(Clone, Debug)]
enum Change {
    Insert { list: &'static str, at: Index, container: Value },
    Swap { list: &'static str, one: Index, other: Index },
    Annotate { key: &'static str, value: String },
    Replace { at: &'static str, value: Value },
    FirstArgs(Vec<String>),
    Volume(Value),
    FirstMount(Value),
}

fn change() -> impl Strategy<Value = Change> {
    let list = || select(vec!["containers", "initContainers"]);
    prop_oneof![
        4 => (list(), any::<Index>(), container()).prop_map(|(list, at, container)| Change::Insert { list, at, container }),
        2 => (list(), any::<Index>(), any::<Index>()).prop_map(|(list, one, other)| Change::Swap { list, one, other }),
        2 => (
            select(vec![GATE, STOP, GATE_TIMEOUT, IGNORE, FINISH, READY, ORIGINAL_IMAGES, INJECTED, "example.com/~a/b"]),
            select(vec!["true", "false", "", "nonsense", "web,sidecar-web", "istio-proxy", "5m"]),
        ).prop_map(|(key, value)| Change::Annotate { key, value: value.into() }),
        1 => select(vec![
            ("/metadata/annotations", Value::Null),
            ("/metadata/annotations", json!({})),
            ("/spec/volumes", Value::Null),
            ("/spec/volumes", json!([])),
            ("/spec/initContainers", Value::Null),
        ]).prop_map(|(at, value)| Change::Replace { at, value }),
        3 => (head(), tail()).prop_map(|(head, tail)| Change::FirstArgs([head, vec!["--".into()], tail].concat())),
        1 => select(vec![
            json!({ "name": "kickstand-gate", "emptyDir": {} }),
            json!({ "name": "data", "emptyDir": {} }),
            gate::volume(),
        ]).prop_map(Change::Volume),
        1 => select(vec!["/kickstand", "/kickstand/a", "/kick", "/data"])
            .prop_map(|path| Change::FirstMount(json!({ "name": "data", "mountPath": path }))),
    ]
}

fn container() -> impl Strategy<Value = Value> {
    (
        select(vec!["istio-proxy", "sidecar-web", "web", "step-late", "vault-agent", "prepare"]),
        select(vec![None, Some("Always"), Some("Never")]),
        any::<[bool; 2]>(),
    )
        .prop_map(|(name, restart_policy, [readiness, startup])| {
            let mut container = json!({ "name": name, "image": "example.com/any" });
            if let Some(policy) = restart_policy {
                container["restartPolicy"] = policy.into();
            }
            for (wanted, probe) in [(readiness, "readinessProbe"), (startup, "startupProbe")] {
                if wanted {
                    container[probe] = json!({ "httpGet": { "port": 15021 } });
                }
            }
            container
        })
}

/// The entrypoint's own arguments: flags of Tekton in any order, in any way of writing that Go reads.
fn head() -> impl Strategy<Value = Vec<String>> {
    let valued = (
        select(vec!["termination_path", "entrypoint", "timeout", "basic-git", "when_expressions", "results"]),
        select(vec!["/tekton/termination", "-wait_file", "--", "-post_file", "a=b", "", "-wait_file_content"]),
    );
    let boolean = select(vec!["breakpoint_on_failure", "enable_spire", "compress_termination_message"]);
    let flag = prop_oneof![
        (valued, any::<[bool; 2]>()).prop_map(|((name, value), style)| written(name, value, style)),
        (boolean, any::<bool>()).prop_map(|(name, two)| vec![format!("{}{name}", if two { "--" } else { "-" })]),
    ];
    let wait =
        prop_oneof![Just(None), (select(vec!["/tekton/downward/ready", "/a,/b"]), any::<[bool; 2]>()).prop_map(Some),];
    (vec(flag, 0..4), vec(wait, 0..3), any::<Index>(), any::<[bool; 2]>()).prop_map(|(mut flags, waits, at, style)| {
        for (path, style) in waits.into_iter().flatten() {
            flags.insert(at.index(flags.len() + 1), written("wait_file", path, style));
            flags.insert(at.index(flags.len() + 1), vec!["-wait_file_content".into()]);
        }
        flags.insert(at.index(flags.len() + 1), written("post_file", "/tekton/run/0/out", style));
        flags.concat()
    })
}

fn written(name: &str, value: &str, [two_dashes, one_argument]: [bool; 2]) -> Vec<String> {
    let dashes = if two_dashes { "--" } else { "-" };
    if one_argument { vec![format!("{dashes}{name}={value}")] } else { vec![format!("{dashes}{name}"), value.into()] }
}

/// What belongs to the user.
fn tail() -> impl Strategy<Value = Vec<String>> {
    let lookalike =
        select(vec!["-wait_file", "--wait_file=/a", "/kickstand/ready", "-wait_file_content", "-post_file", "--", "-"]);
    vec(prop_oneof![lookalike.prop_map(str::to_owned), ".{0,12}"], 0..6)
}

fn pod() -> impl Strategy<Value = Value> {
    (any::<Index>(), vec(change(), 0..6)).prop_map(|(fixture, changes)| {
        let mut raw = fixture.get(FIXTURES.as_slice()).clone();
        for change in changes {
            apply(&mut raw, change);
        }
        raw
    })
}

fn apply(raw: &mut Value, change: Change) {
    match change {
        Change::Insert { list, at, container } => {
            if raw["spec"][list].is_null() {
                raw["spec"][list] = json!([]);
            }
            let list = raw["spec"][list].as_array_mut().unwrap();
            list.insert(at.index(list.len() + 1), container);
        }
        Change::Swap { list, one, other } => {
            if let Some(list) = raw["spec"][list].as_array_mut().filter(|list| !list.is_empty()) {
                let (one, other) = (one.index(list.len()), other.index(list.len()));
                list.swap(one, other);
            }
        }
        Change::Annotate { key, value } => raw["metadata"]["annotations"][key] = value.into(),
        Change::Replace { at, value } => {
            if let Some(place) = raw.pointer_mut(at) {
                *place = value;
            }
        }
        Change::FirstArgs(args) => {
            if let Some(step) = first_step(raw) {
                raw["spec"]["containers"][step]["args"] = json!(args);
            }
        }
        Change::Volume(volume) => {
            if let Some(volumes) = raw["spec"]["volumes"].as_array_mut() {
                volumes.push(volume);
            }
        }
        Change::FirstMount(mount) => {
            if let Some(step) = first_step(raw) {
                raw["spec"]["containers"][step]["volumeMounts"].as_array_mut().unwrap().push(mount);
            }
        }
    }
}

fn first_step(raw: &Value) -> Option<usize> {
    tekton::first_step(&Pod::from_raw(raw).unwrap())
}

fn any_options() -> impl Strategy<Value = Options<'static>> {
    let options: [fn() -> Options<'static>; 6] = [live, live, native, native, native, dead];
    select(options.to_vec()).prop_map(|options| options())
}

/// Without the native strategy.
fn classic_options() -> impl Strategy<Value = Options<'static>> {
    let options: [fn() -> Options<'static>; 4] = [live, live, live, dead];
    select(options.to_vec()).prop_map(|options| options())
}

// What is compared

/// A pod without what is ours to change: our annotations, our volume, the first step's mounts of it and arguments. As a
/// value, since the order of lists counts and that of fields does not.
fn without_ours(raw: &Value) -> Value {
    let mut rest = raw.clone();
    let step = first_step(raw);
    for key in [INJECTED, READY, NUDGED, ORIGINAL_IMAGES] {
        if let Some(annotations) = rest["metadata"]["annotations"].as_object_mut() {
            annotations.shift_remove(key);
        }
    }
    let is_ours = |item: &Value| *item == gate::volume() || *item == gate::mount();
    let mut lists = vec!["/spec/volumes".to_owned()];
    if let Some(step) = step {
        lists.push(format!("/spec/containers/{step}/volumeMounts"));
        rest["spec"]["containers"][step]["args"] = Value::Null;
    }
    for list in lists {
        if let Some(items) = rest.pointer_mut(&list).and_then(Value::as_array_mut) {
            items.retain(|item| !is_ours(item));
        }
    }
    // Nothing, null and empty are the same here: what is added brings its list along.
    for (parent, key) in [("/metadata", "annotations"), ("/spec", "volumes")] {
        let parent = rest.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if parent.get(key).is_some_and(|part| part.is_null() || *part == json!({}) || *part == json!([])) {
            parent.shift_remove(key);
        }
    }
    rest
}

/// A string field that no Kubernetes has, in every object of a pod.
fn with_invented_fields(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: serde_json::Map<_, _> =
                fields.iter().map(|(key, value)| (key.clone(), with_invented_fields(value))).collect();
            fields.insert("invented".into(), "kept".into());
            Value::Object(fields)
        }
        Value::Array(items) => items.iter().map(with_invented_fields).collect(),
        other => other.clone(),
    }
}

fn without_invented_fields(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(key, _)| *key != "invented")
            .map(|(key, value)| (key.clone(), without_invented_fields(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(without_invented_fields).collect(),
        other => other.clone(),
    }
}

fn count_invented(value: &Value) -> usize {
    match value {
        Value::Object(fields) => {
            usize::from(fields.contains_key("invented")) + fields.values().map(count_invented).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(count_invented).sum(),
        _ => 0,
    }
}

/// Go's `flag.FlagSet.Parse`, word for word, for the flags that [`head`] makes: an opinion that is not our own on what the
/// entrypoint waits for.
fn go_waits_for(args: &[String]) -> (Vec<String>, bool) {
    const BOOLEAN: [&str; 4] =
        ["wait_file_content", "breakpoint_on_failure", "enable_spire", "compress_termination_message"];
    let (mut files, mut content) = (String::new(), false);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg.len() < 2 || !arg.starts_with('-') || arg == "--" {
            break;
        }
        let text = arg.strip_prefix("--").unwrap_or(&arg[1..]);
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let value = match value {
            Some(value) => value,
            None if BOOLEAN.contains(&name) => "true",
            None => args.next().unwrap(),
        };
        match name {
            "wait_file" => value.clone_into(&mut files),
            "wait_file_content" => content = value == "true",
            _ => {}
        }
    }
    (files.split(',').filter(|file| !file.is_empty()).map(str::to_owned).collect(), content)
}

proptest! {
    #[test]
    fn the_patch_applies_and_a_second_pass_patches_nothing(
        raw in pod(), first in any_options(), alive in any::<bool>(), defaulted in any::<bool>(),
    ) {
        let mutation = mutate(&raw, &first).unwrap();
        let mut once = after(&raw, &mutation);
        if defaulted {
            set_defaults(&mut once);
        }
        let second = Options { controller_alive: alive, ..first.clone() };
        let again = if matches!(mutation.decision, Decision::Gated(_)) { &second } else { &first };
        let again = mutate(&once, again).unwrap();
        prop_assert_eq!(again.patch, Patch(Vec::new()));
        prop_assert_eq!(again.decision, mutation.decision);
    }

    #[test]
    fn a_pod_is_gated_exactly_if_that_was_decided(raw in pod(), options in any_options()) {
        prop_assume!(!is_gated(&raw));
        let mutation = mutate(&raw, &options).unwrap();
        prop_assert_eq!(is_gated(&after(&raw, &mutation)), matches!(mutation.decision, Decision::Gated(_)));
    }

    #[test]
    fn nothing_but_ours_changes_and_every_list_keeps_its_order(raw in pod(), options in classic_options()) {
        let mutation = mutate(&raw, &options).unwrap();
        prop_assume!(mutation.brought_back.is_empty());
        let after = after(&raw, &mutation);
        prop_assert_eq!(without_ours(&after), without_ours(&raw));
    }

    #[test]
    fn fields_that_this_build_does_not_know_survive_at_every_level(raw in pod(), options in any_options()) {
        let rich = with_invented_fields(&raw);
        let mutation = mutate(&rich, &options).unwrap();
        let after_rich = after(&rich, &mutation);
        prop_assert_eq!(count_invented(&after_rich), count_invented(&rich));
        prop_assert_eq!(&mutation.decision, &mutate(&raw, &options).unwrap().decision);
        let plain = after(&raw, &mutate(&raw, &options).unwrap());
        prop_assume!(mutation.brought_back.is_empty() && mutation.moved.as_ref().map_or(true, Vec::is_empty));
        // Nothing, null and empty annotations differ by the invented one in them.
        prop_assert_eq!(without_ours(&without_invented_fields(&after_rich)), without_ours(&plain));
    }

    #[test]
    fn go_reads_the_new_arguments_as_the_old_ones_and_the_gate(head in head(), tail in tail()) {
        let before = [head, vec!["--".into()], tail.clone()].concat();
        let mut args = before.clone();
        match entrypoint::wait_for(&before, GATE_FILE).unwrap().unwrap() {
            entrypoint::Change::Replace(at, argument) => args[at] = argument,
            entrypoint::Change::Prepend(arguments) => drop(args.splice(0..0, arguments)),
        }
        let (files, content) = go_waits_for(&before);
        prop_assert_eq!(Flags::read(&before).waits_for().collect::<Vec<_>>(), files.iter().collect::<Vec<_>>());
        let (new_files, new_content) = go_waits_for(&args);
        prop_assert_eq!(new_files, [files.clone(), vec![GATE_FILE.to_owned()]].concat());
        prop_assert!(new_content && (content || files.is_empty()));
        prop_assert_eq!(&args[args.len() - tail.len()..], &tail[..]);
        // Not a second one either.
        let ours = args.iter().filter(|arg| arg.contains(GATE_FILE)).count();
        prop_assert_eq!(ours, 1 + tail.iter().filter(|arg| arg.contains(GATE_FILE)).count());
    }

    #[test]
    fn arbitrary_json_never_panics(raw in any_json(), options in any_options()) {
        let _ = mutate(&raw, &options);
    }

    #[test]
    fn a_pod_with_arbitrary_parts_never_panics_and_its_patch_applies(
        raw in pod(), parts in vec((any::<Index>(), any_json()), 1..4), options in any_options(),
    ) {
        let mut raw = raw;
        for (at, part) in parts {
            let mut paths = Vec::new();
            paths_into(&raw, &mut String::new(), &mut paths);
            if let Some(place) = raw.pointer_mut(&paths[at.index(paths.len())]) {
                *place = part;
            }
        }
        if let Ok(mutation) = mutate(&raw, &options) {
            prop_assert!(json_patch::patch(&mut raw, &mutation.patch).is_ok());
        }
    }

    #[test]
    fn arbitrary_arguments_never_panic(args in vec(prop_oneof![
        select(vec!["-wait_file", "--wait_file=", "-wait_file_content", "-post_file", "--", "-", "---", "-=", "/tekton/run/0/out"])
            .prop_map(str::to_owned),
        ".{0,8}",
    ], 0..8)) {
        let mut raw = super::pod_with(&[json!({ "name": "web" })]);
        raw["spec"]["containers"][0]["args"] = json!(args);
        let mutation = mutate(&raw, &live()).unwrap();
        prop_assert_eq!(is_gated(&after(&raw, &mutation)), matches!(mutation.decision, Decision::Gated(_)));
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        let key = prop_oneof![
            select(vec![
                "metadata",
                "spec",
                "containers",
                "labels",
                "annotations",
                "name",
                "args",
                "volumes",
                "status"
            ])
            .prop_map(str::to_owned),
            ".{0,8}",
        ];
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            vec((key, inner), 0..6).prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

/// Pointers to every value inside.
fn paths_into(value: &Value, path: &mut String, paths: &mut Vec<String>) {
    paths.push(path.clone());
    let length = path.len();
    let mut enter = |key: &str, value: &Value| {
        path.push('/');
        path.push_str(&key.replace('~', "~0").replace('/', "~1"));
        paths_into(value, path, paths);
        path.truncate(length);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| enter(key, value)),
        Value::Array(items) => items.iter().enumerate().for_each(|(at, value)| enter(&at.to_string(), value)),
        _ => {}
    }
}
