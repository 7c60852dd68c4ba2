//! Tekton's feature flags and its nop image: set for a group, seen to hold, put back in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::case::TektonNop;
use super::lab::Lab;
use super::pods::PodExt as _;
use super::scene::Scene;
use super::taskrun::{Sidecar, TaskRun};

const NAMESPACE: &str = "tekton-pipelines";
const FLAGS: &str = "feature-flags";
const CONTROLLER: &str = "tekton-pipelines-controller";
/// Annotation on the flags: what they were before, so that a run that was killed is put right by the next one.
const BEFORE: &str = "e2e.kickstand.dev/before";

const AWAIT: &str = "await-sidecar-readiness";
const NATIVE: &str = "enable-kubernetes-sidecar";
const INJECTED: &str = "running-in-environment-with-injected-sidecars";
const KEEP: &str = "keep-pod-on-cancel";
const SECURED: &str = "set-security-context";
/// The flags that matter here, with Tekton's defaults.
const DEFAULTS: [(&str, &str); 5] =
    [(AWAIT, "true"), (NATIVE, "false"), (INJECTED, "true"), (KEEP, "false"), (SECURED, "false")];

#[derive(Debug, Serialize, Deserialize)]
struct Before {
    flags: BTreeMap<String, Option<String>>,
    nop_image: Option<String>,
}

fn maps(lab: &Lab) -> Api<ConfigMap> {
    Api::namespaced(lab.client.clone(), NAMESPACE)
}

fn deployments(lab: &Lab) -> Api<Deployment> {
    Api::namespaced(lab.client.clone(), NAMESPACE)
}

/// Writes down how Tekton is set now, unless a run that was killed has left that undone.
pub(crate) async fn remember(lab: &Lab) -> Result<()> {
    let map = maps(lab).get(FLAGS).await.context("ConfigMap tekton-pipelines/feature-flags")?;
    if map.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(BEFORE)) {
        return Ok(());
    }
    let data = map.data.unwrap_or_default();
    let flags = DEFAULTS.iter().map(|(key, _)| ((*key).to_owned(), data.get(*key).cloned())).collect();
    let before = Before { flags, nop_image: nop_image(lab).await?.map(|(_, image)| image) };
    let patch = json!({ "metadata": { "annotations": { BEFORE: serde_json::to_string(&before)? } } });
    maps(lab).patch(FLAGS, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Puts it back.
pub(crate) async fn restore(lab: &Lab) -> Result<()> {
    let Some(before) = before(lab).await? else { return Ok(()) };
    if let Some(image) = before.nop_image {
        set_nop_image(lab, &image).await?;
    }
    // A flag that was not there goes again: null.
    let patch = json!({ "data": before.flags, "metadata": { "annotations": { BEFORE: null } } });
    maps(lab).patch(FLAGS, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// The image that Tekton stops sidecars with, when nobody here has changed it.
pub(crate) async fn own_nop_image(lab: &Lab) -> Result<Option<String>> {
    Ok(before(lab).await?.and_then(|before| before.nop_image))
}

async fn before(lab: &Lab) -> Result<Option<Before>> {
    let map = maps(lab).get(FLAGS).await?;
    let text = map.metadata.annotations.unwrap_or_default().remove(BEFORE);
    text.map(|text| serde_json::from_str(&text).context("what Tekton's flags were before")).transpose()
}

/// Sets the flags that differ from Tekton's defaults, and waits until the pods that it makes show them.
pub(crate) async fn set(lab: &Lab, flags: &[(&str, &str)], nop: TektonNop) -> Result<()> {
    for (key, _) in flags {
        ensure!(DEFAULTS.iter().any(|(known, _)| known == key), "no flag that is known here: {key}");
    }
    let mut wanted: BTreeMap<&str, &str> = DEFAULTS.into_iter().collect();
    wanted.extend(flags.iter().copied());
    let patch = json!({ "data": wanted });
    maps(lab).patch(FLAGS, &PatchParams::default(), &Patch::Merge(patch)).await?;
    match nop {
        TektonNop::Ours => set_nop_image(lab, &lab.images.nop).await?,
        TektonNop::Its => {
            if let Some(image) = own_nop_image(lab).await? {
                set_nop_image(lab, &image).await?;
            }
        }
    }
    let on = |key| wanted.get(key).copied() == Some("true");
    let expected = Shape {
        waits: on(AWAIT),
        waits_alone: on(AWAIT) && on(INJECTED),
        native: on(NATIVE),
        keeps: on(KEEP),
        secured: on(SECURED),
    };
    let mut seen = None;
    for attempt in 0..30 {
        let shape = Shape::probe(lab, attempt).await.context("a TaskRun that shows Tekton's flags")?;
        if shape == expected {
            return Ok(());
        }
        seen = Some(shape);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    bail!("Tekton does not take in its feature flags: expected pods of {expected:?}, seen {seen:?}")
}

/// How Tekton's flags show in a pod.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
struct Shape {
    waits: bool,
    waits_alone: bool,
    native: bool,
    keeps: bool,
    secured: bool,
}

impl Shape {
    async fn probe(lab: &Lab, attempt: u32) -> Result<Self> {
        let at = kickstand::clock::now().as_millisecond() % 1_000_000;
        let scene = Scene::new(lab, lab.namespace(&format!("flags-{at}-{attempt}"), Some(false)).await?);
        let probed = Self::read(&scene).await;
        lab.delete_namespace(&scene.namespace).await?;
        probed
    }

    async fn read(scene: &Scene<'_>) -> Result<Self> {
        let with = scene.start(&TaskRun::new("with").step("true").sidecar(Sidecar::idle("web"))).await?.pod().await?;
        let without = scene.start(&TaskRun::new("without").step("true")).await?.pod().await?;
        let (with, without) = scene.record.look(|seen| (seen.pod(&with), seen.pod(&without)));
        let (with, without) = (with.context("no pod")?, without.context("no pod")?);
        let spec = json!(with.spec);
        let native = spec["initContainers"].as_array().into_iter().flatten().any(|it| it["name"] == "sidecar-web");
        let items = |volume: &Value| volume["downwardAPI"]["items"].as_array().cloned().unwrap_or_default();
        let keeps =
            spec["volumes"].as_array().into_iter().flatten().flat_map(items).any(|item| item["path"] == "cancel");
        let secured = spec["initContainers"][0]["securityContext"]["allowPrivilegeEscalation"] == false;
        Ok(Self { waits: with.waits_for_tekton(), waits_alone: without.waits_for_tekton(), native, keeps, secured })
    }
}

/// Where it stands among the controller's arguments, and which it is.
async fn nop_image(lab: &Lab) -> Result<Option<(String, String)>> {
    let deployment = json!(deployments(lab).get(CONTROLLER).await.context("Tekton's controller")?);
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    for (at, container) in containers.iter().enumerate() {
        let args = container["args"].as_array().cloned().unwrap_or_default();
        if let Some(flag) = args.iter().position(|arg| arg == "-nop-image") {
            let path = format!("/spec/template/spec/containers/{at}/args/{}", flag + 1);
            let image = args.get(flag + 1).and_then(Value::as_str).unwrap_or_default().to_owned();
            return Ok(Some((path, image)));
        }
    }
    Ok(None)
}

async fn set_nop_image(lab: &Lab, image: &str) -> Result<()> {
    let (place, now) = nop_image(lab).await?.context("Tekton's controller has no argument -nop-image")?;
    if now == image {
        return Ok(());
    }
    let patch: json_patch::Patch = serde_json::from_value(json!([{ "op": "replace", "path": place, "value": image }]))?;
    deployments(lab).patch(CONTROLLER, &PatchParams::default(), &Patch::Json::<()>(patch)).await?;
    for _ in 0..180 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let deployment = deployments(lab).get(CONTROLLER).await?;
        let pods = Api::<Pod>::namespaced(lab.client.clone(), NAMESPACE);
        let pods = pods.list(&ListParams::default().labels(&format!("app={CONTROLLER}"))).await?;
        let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let status = deployment.status.unwrap_or_default();
        // The old one may still lead: it must be gone.
        if status.observed_generation == deployment.metadata.generation
            && status.updated_replicas == Some(replicas)
            && status.available_replicas == Some(replicas)
            && i32::try_from(pods.items.len()) == Ok(replicas)
        {
            return Ok(());
        }
    }
    bail!("Tekton's controller did not come back with -nop-image {image}")
}
