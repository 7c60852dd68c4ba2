//! The floor: what the fastest client can do. It opens a gate (of its own name, which Kickstand does not know) as soon as
//! it sees the sidecars ready, and stops them as soon as it sees the steps done: with nop, as Kickstand must where nobody
//! knows how a sidecar ends, or with an image that no runtime can parse, which spares the kubelet a container's start.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::pods::PodExt;
use crate::harness::scene::Scene;
use crate::harness::story;

/// Annotation that opens the floor's gate.
pub(crate) const OPEN: &str = "e2e.kickstand.dev/floor-ready";
/// Annotation that asks this program's injector for the floor's gate.
pub(crate) const WANTED: &str = "e2e.kickstand.dev/floor-gate";

/// The gate, as operations on a pod: the same shape as Kickstand's, under other names.
pub(crate) fn gate(pod: &Value) -> Vec<Value> {
    let containers = pod["spec"]["containers"].as_array();
    let step = containers
        .and_then(|all| all.iter().position(|it| it["name"].as_str().is_some_and(|name| name.starts_with("step-"))));
    let Some(step) = step else { return Vec::new() };
    let volume = json!({
        "name": "floor-gate",
        "downwardAPI": { "items": [{ "path": "ready", "fieldRef": { "fieldPath": format!("metadata.annotations['{OPEN}']") } }] },
    });
    let container = format!("/spec/containers/{step}");
    vec![
        json!({ "op": "add", "path": "/spec/volumes/-", "value": volume }),
        json!({ "op": "add", "path": format!("{container}/volumeMounts/-"), "value": { "name": "floor-gate", "mountPath": "/floor", "readOnly": true } }),
        json!({ "op": "add", "path": format!("{container}/args/0"), "value": "-wait_file_content" }),
        json!({ "op": "add", "path": format!("{container}/args/0"), "value": "/floor/ready" }),
        json!({ "op": "add", "path": format!("{container}/args/0"), "value": "-wait_file" }),
    ]
}

/// Opens and stops one pod.
pub(crate) async fn serve(scene: &Scene<'_>, pod: &str, stop_with: &str) -> Result<()> {
    let pods = scene.lab.pods(&scene.namespace);
    let ready = |pod: &Pod| story::sidecars(pod).iter().all(|name| pod.is_ready(name));
    scene.wait_for_pod(pod, "its sidecars are ready", ready).await?;
    let open = json!({ "metadata": { "annotations": { OPEN: kickstand::clock::now().to_string() } } });
    pods.patch(pod, &PatchParams::default(), &Patch::Merge(open)).await?;
    let done = scene.wait_for_pod(pod, "its steps are done", PodExt::steps_done).await?;
    let ended: Vec<Value> =
        story::sidecars(&done).iter().map(|name| json!({ "name": name, "image": stop_with })).collect();
    let stop = json!({ "spec": { "containers": ended } });
    pods.patch(pod, &PatchParams::default(), &Patch::Strategic(stop)).await?;
    Ok(())
}
