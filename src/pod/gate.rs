//! The gate, as it stands in a pod's spec: a file of the downward API that the first step's entrypoint waits for.
//!
//! Whether a pod is gated is read from its spec alone, which nobody can change after admission. The shape is frozen:
//! an older controller must release what a newer webhook held, and a newer one what an older one did.

use serde_json::{Value, json};

use super::contract::{GATE_DIR, GATE_FILE, GATE_ITEM, GATE_VOLUME, READY};
use super::entrypoint::Flags;
use super::model::{Pod, Volume};
use super::tekton;

/// Is this pod's first step held by a gate of ours until the annotation [`READY`] appears?
#[must_use]
pub fn is_gated(pod: &Pod) -> bool {
    pod.spec.volumes.iter().any(is_ours)
        && pod.spec.containers.iter().any(|container| {
            tekton::is_step(container) && Flags::read(&container.args).waits_for().any(|file| file == GATE_FILE)
        })
}

/// Gated, and the annotation is not there yet: the step waits.
#[must_use]
pub fn is_shut(pod: &Pod) -> bool {
    is_gated(pod) && pod.annotation(READY).is_none_or(str::is_empty)
}

/// The gate's volume, in the shape we give it. (The API server adds defaults to it, hence no comparison as a whole.)
#[must_use]
pub fn is_ours(volume: &Volume) -> bool {
    volume.name == GATE_VOLUME
        && volume.downward_api.as_ref().is_some_and(|api| {
            api.items.iter().any(|item| {
                item.path == GATE_ITEM && item.field_ref.as_ref().is_some_and(|field| field.field_path == field_path())
            })
        })
}

/// The volume to add to a pod.
#[must_use]
pub fn volume() -> Value {
    json!({
        "name": GATE_VOLUME,
        "downwardAPI": { "items": [{ "path": GATE_ITEM, "fieldRef": { "fieldPath": field_path() } }] },
    })
}

/// The mount to add to the first step.
#[must_use]
pub fn mount() -> Value {
    json!({ "name": GATE_VOLUME, "mountPath": GATE_DIR, "readOnly": true })
}

/// Tekton's own wait, on the same step: its file in its own downward volume (Tekton ≥ 0.9).
#[must_use]
pub fn tekton_waits(pod: &Pod) -> bool {
    tekton::first_step(pod).is_some_and(|step| {
        Flags::read(&pod.spec.containers[step].args).waits_for().any(|file| file.ends_with("/downward/ready"))
    })
}

fn field_path() -> String {
    format!("metadata.annotations['{READY}']")
}
