//! Pods of every Tekton since 0.1 and of the common injectors, each with what becomes of it. A pod without a sidecar is
//! shown a second time, after an injector has put one in front: arguments are what most of these files are about.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use rstest::rstest;
use serde_json::{Value, json};

use super::super::*;
use super::{after, dead, is_gated, live, set_defaults};

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn shown(raw: &Value) -> Value {
    let mutation = mutate(raw, &live()).unwrap();
    json!({
        "decision": match &mutation.decision {
            Decision::Gated(waits_for) => json!({ "gated": waits_for }),
            Decision::Ungated(why) => json!({ "ungated": why.to_string() }),
        },
        "warnings": mutation.warnings,
        "patch": mutation.patch,
    })
}

fn with_a_proxy_in_front(raw: &Value) -> Value {
    let mut raw = raw.clone();
    let proxy = json!({ "name": "istio-proxy", "image": "docker.io/istio/proxyv2", "readinessProbe": {} });
    raw["spec"]["containers"].as_array_mut().unwrap().insert(0, proxy);
    raw
}

#[rstest]
fn a_pod_becomes(
    #[files("tests/fixtures/tekton/*/*.json")]
    #[files("tests/fixtures/injected/*/*.json")]
    path: PathBuf,
) {
    let raw = read(&path);
    let mut text = format!("{:#}\n", shown(&raw));
    if matches!(mutate(&raw, &live()).unwrap().decision, Decision::Ungated(Ungated::NobodyToAwait)) {
        write!(text, "\nwith a proxy in front:\n{:#}\n", shown(&with_a_proxy_in_front(&raw))).unwrap();
    }
    // The note names this build.
    let text = text.replace(&format!(r#"\"version\":\"{}\""#, env!("CARGO_PKG_VERSION")), r#"\"version\":\"0\""#);
    let name = path.with_extension("");
    let name = name.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")).unwrap();
    let name = name.to_str().unwrap().replace('/', "__");
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[rstest]
fn a_pod_is_patched_once(
    #[files("tests/fixtures/tekton/*/*.json")]
    #[files("tests/fixtures/injected/*/*.json")]
    path: PathBuf,
) {
    let raw = with_a_proxy_in_front(&read(&path));
    let mut once = after(&raw, &mutate(&raw, &live()).unwrap());
    set_defaults(&mut once);
    for options in [&live(), &dead()] {
        let again = mutate(&once, options).unwrap();
        if is_gated(&once) {
            assert_eq!(again.patch, Patch(Vec::new()));
            assert!(matches!(again.decision, Decision::Gated(_)), "{:?}", again.decision);
        }
    }
}

#[rstest]
fn before_0_9_nothing_is_touched(#[files("tests/fixtures/tekton/v0.[0-8].*/*.json")] path: PathBuf) {
    let mutation = mutate(&with_a_proxy_in_front(&read(&path)), &live()).unwrap();
    assert_eq!(mutation.decision, Decision::Ungated(NotOurs::NoEntrypoint.into()));
    assert_eq!((mutation.patch, mutation.warnings), (Patch(Vec::new()), Vec::new()));
}

#[rstest]
fn from_0_9_on_every_task_run_can_be_held(
    #[files("tests/fixtures/tekton/v0.[1-9][0-9]*/*.json")]
    #[files("tests/fixtures/tekton/v[1-9]*/*.json")]
    #[files("tests/fixtures/tekton/main/*.json")]
    #[exclude("negative-")]
    path: PathBuf,
) {
    let raw = with_a_proxy_in_front(&read(&path));
    assert!(is_gated(&after(&raw, &mutate(&raw, &live()).unwrap())));
}
