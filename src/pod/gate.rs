//! The gate, as it stands in a pod's spec: a file of the downward API that the first step's entrypoint waits for.
//!
//! Whether a pod is gated is read from its spec alone, which nobody can change after admission. The shape is frozen:
//! an older controller must release what a newer webhook held, and a newer one what an older one did.

use serde_json::{Value, json};

use super::contract::{GATE_DIR, GATE_FILE, GATE_ITEM, GATE_VOLUME, READY};
use super::entrypoint::Flags;
use super::model::{Pod, Volume, VolumeMount};
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

/// The gate's mount, in the shape we give it.
#[must_use]
pub fn is_our_mount(mount: &VolumeMount) -> bool {
    mount.name == GATE_VOLUME && mount.mount_path == GATE_DIR
}

/// A mount of somebody else's that would hide the gate's file, or that no runtime could make inside the gate's read-only
/// volume.
#[must_use]
pub fn is_in_the_way(mount: &VolumeMount) -> bool {
    let top = mount.mount_path.split('/').find(|part| !part.is_empty() && *part != ".");
    !is_our_mount(mount) && (mount.name == GATE_VOLUME || top == GATE_DIR.strip_prefix('/'))
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn gated(volume: &Value, args: &Value, annotations: &Value) -> Pod {
        Pod::from_raw(&json!({
            "metadata": { "annotations": annotations },
            "spec": { "volumes": [volume], "containers": [{ "name": "step-a", "args": args }] },
        }))
        .unwrap()
    }

    fn waiting() -> Value {
        json!(["-wait_file", "/tekton/downward/ready,/kickstand/ready", "-wait_file_content", "--", "true"])
    }

    #[test]
    fn the_gates_shape_is_frozen() {
        // An older controller must release what a newer webhook held, and a newer controller what an older one did.
        assert_eq!(
            json!([volume(), mount(), GATE_FILE]).to_string(),
            concat!(
                r#"[{"name":"kickstand-gate","downwardAPI":{"items":[{"path":"ready","fieldRef":"#,
                r#"{"fieldPath":"metadata.annotations['kickstand.dev/ready']"}}]}},"#,
                r#"{"name":"kickstand-gate","mountPath":"/kickstand","readOnly":true},"/kickstand/ready"]"#,
            )
        );
    }

    #[test]
    fn the_file_is_in_the_mount() {
        assert_eq!(format!("{GATE_DIR}/{GATE_ITEM}"), GATE_FILE);
    }

    #[test]
    fn our_volume_is_known_again_after_the_api_servers_defaulting() {
        let defaulted = json!({
            "name": "kickstand-gate",
            "downwardAPI": {
                "defaultMode": 420,
                "items": [{
                    "path": "ready",
                    "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.annotations['kickstand.dev/ready']" },
                }],
            },
        });
        assert!(is_gated(&gated(&volume(), &waiting(), &json!({}))));
        assert!(is_gated(&gated(&defaulted, &waiting(), &json!({}))));
    }

    #[rstest]
    #[case::the_volume_is_another_kind(json!({ "name": "kickstand-gate", "emptyDir": {} }), waiting())]
    #[case::the_volume_projects_something_else(
        json!({ "name": "kickstand-gate", "downwardAPI": { "items": [
            { "path": "ready", "fieldRef": { "fieldPath": "metadata.annotations['tekton.dev/ready']" } },
        ] } }),
        waiting()
    )]
    #[case::the_volume_has_another_name(
        json!({ "name": "other", "downwardAPI": volume()["downwardAPI"] }), waiting()
    )]
    #[case::no_step_waits_for_the_file(volume(), json!(["-wait_file", "/tekton/downward/ready", "-wait_file_content"]))]
    #[case::only_the_users_own_arguments_name_it(volume(), json!(["--", "-wait_file", "/kickstand/ready"]))]
    fn half_a_gate_is_none(#[case] volume: Value, #[case] args: Value) {
        assert!(!is_gated(&gated(&volume, &args, &json!({}))));
    }

    #[rstest]
    #[case::absent(json!({}), true)]
    #[case::empty(json!({ "kickstand.dev/ready": "" }), true)]
    #[case::the_time(json!({ "kickstand.dev/ready": "2026-01-15T10:00:00Z" }), false)]
    fn a_gate_is_shut_until_the_annotation_says_something(#[case] annotations: Value, #[case] shut: bool) {
        assert_eq!(is_shut(&gated(&volume(), &waiting(), &annotations)), shut);
    }

    #[rstest]
    #[case::ours("kickstand-gate", "/kickstand", false)]
    #[case::our_volume_elsewhere("kickstand-gate", "/mnt", true)]
    #[case::another_volume_at_our_place("data", "/kickstand", true)]
    #[case::with_a_slash_behind("data", "/kickstand/", true)]
    #[case::with_slashes_before("data", "//kickstand", true)]
    #[case::inside_it("data", "/kickstand/cache", true)]
    #[case::a_longer_name("data", "/kickstand-cache", false)]
    #[case::deeper("data", "/workspace/kickstand", false)]
    #[case::above_it("data", "/", false)]
    fn a_mount_is_in_the_way_if_it_would_hide_the_file(
        #[case] name: &str,
        #[case] path: &str,
        #[case] in_the_way: bool,
    ) {
        let mount = VolumeMount { name: name.into(), mount_path: path.into() };
        assert_eq!(is_in_the_way(&mount), in_the_way);
    }

    #[rstest]
    #[case::it_does("/tekton/downward/ready", true)]
    #[case::beside_our_gate("/tekton/downward/ready,/kickstand/ready", true)]
    #[case::it_does_not("/kickstand/ready", false)]
    fn tektons_own_wait_is_read_from_the_first_step(#[case] files: &str, #[case] waits: bool) {
        let pod = Pod::from_raw(&json!({ "spec": { "containers": [
            { "name": "istio-proxy", "args": ["-wait_file", "/tekton/downward/ready"] },
            {
                "name": "step-a",
                "command": ["/tekton/bin/entrypoint"],
                "args": ["-wait_file", files, "-wait_file_content", "-post_file", "/tekton/run/0/out", "--"],
            },
        ] } }))
        .unwrap();
        assert_eq!(tekton_waits(&pod), waits);
    }
}
