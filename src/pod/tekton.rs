//! What makes a pod a TaskRun's, and which of its containers are steps (checked on Tekton v0.1 to v1.15).

use serde_json::Value;

use super::entrypoint::Flags;
use super::model::{Container, OwnerReference, Pod};

/// Label on every pod of a TaskRun, with the TaskRun's name (Tekton ≥ 0.1).
pub const TASK_RUN: &str = "tekton.dev/taskRun";
/// Label with the TaskRun's UID (Tekton ≥ 0.63).
pub const TASK_RUN_UID: &str = "tekton.dev/taskRunUID";
/// Annotation that Tekton sets to [`CANCELLED`] on a pod that it keeps after a cancellation (Tekton ≥ 0.53).
pub const CANCEL: &str = "tekton.dev/cancel";
/// See [`CANCEL`].
pub const CANCELLED: &str = "CANCEL";
/// The results sidecar (Tekton ≥ 0.43): it holds a run's results and ends by itself.
pub const RESULTS_SIDECAR: &str = "sidecar-tekton-log-results";

/// The entrypoint's path: Tekton ≥ 0.29, and 0.9 to 0.28. Older ones hang on a list of files to wait for, or know no
/// `-wait_file_content`.
const ENTRYPOINTS: [&str; 2] = ["/tekton/bin/entrypoint", "/tekton/tools/entrypoint"];

/// Why a pod is none of our business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOurs {
    /// No label `tekton.dev/taskRun`: an affinity assistant, or no Tekton pod at all.
    #[error("it has no label {TASK_RUN}")]
    NoLabel,
    /// Nobody's, or controlled by something else.
    #[error("it is not controlled by a TaskRun")]
    NotControlled,
    /// Tekton older than v0.9, or none.
    #[error("none of its containers runs Tekton's entrypoint (Tekton ≥ 0.9)")]
    NoEntrypoint,
}

/// Is this the pod of a TaskRun, made by a Tekton that we know how to hold?
///
/// # Errors
/// Why not.
pub fn eligible(pod: &Pod) -> Result<(), NotOurs> {
    if pod.label(TASK_RUN).is_none() {
        return Err(NotOurs::NoLabel);
    }
    if owner(pod).is_none() {
        return Err(NotOurs::NotControlled);
    }
    if !pod.spec.containers.iter().any(runs_entrypoint) {
        return Err(NotOurs::NoEntrypoint);
    }
    Ok(())
}

/// The TaskRun that controls the pod, whatever version of Tekton's API named it.
#[must_use]
pub fn owner(pod: &Pod) -> Option<&OwnerReference> {
    pod.metadata
        .owner_references
        .iter()
        .find(|owner| owner.controller && owner.kind == "TaskRun" && owner.api_version.starts_with("tekton.dev/"))
}

/// Made by Tekton ≥ 0.63: it says so by naming its owner's UID in a label. (The release annotation tells nothing: a
/// commit since v0.27.)
#[must_use]
pub fn names_its_owner(pod: &Pod) -> bool {
    pod.label(TASK_RUN_UID).is_some_and(|uid| owner(pod).is_some_and(|owner| owner.uid == uid))
}

/// The UID of the pod's TaskRun, by Tekton's label.
#[must_use]
pub fn run_uid(pod: &Pod) -> Option<&str> {
    pod.label(TASK_RUN_UID)
}

/// The same, of a raw Pod.
#[must_use]
pub fn run_uid_of_raw(raw: &Value) -> Option<&str> {
    raw.get("metadata")?.get("labels")?.get(TASK_RUN_UID)?.as_str()
}

/// Tekton keeps this pod, and has cancelled its run.
#[must_use]
pub fn is_cancelled(pod: &Pod) -> bool {
    pod.annotation(CANCEL) == Some(CANCELLED)
}

/// Tekton has told the first step to start, as far as it is concerned (Tekton ≥ 0.5).
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    pod.annotation("tekton.dev/ready") == Some("READY")
}

/// A step, by its name. (Only in `spec.containers`: v0.5 to v0.8 and v0.32 to v0.35 have init containers of that name.)
#[must_use]
pub fn is_step(container: &Container) -> bool {
    container.name.starts_with("step-")
}

/// The pod's steps.
pub fn steps(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.containers.iter().filter(|container| is_step(container))
}

/// The index in `spec.containers` of the step that runs first: the one that posts file 0. Never simply the first
/// container: injectors put theirs in front.
#[must_use]
pub fn first_step(pod: &Pod) -> Option<usize> {
    pod.spec.containers.iter().position(|container| {
        is_step(container)
            && runs_entrypoint(container)
            && Flags::read(&container.args)
                .value("post_file")
                .is_some_and(|path| path.ends_with("/0") || path.ends_with("/0/out"))
    })
}

fn runs_entrypoint(container: &Container) -> bool {
    matches!(container.command.as_slice(), [command] if ENTRYPOINTS.contains(&command.as_str()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// A TaskRun's pod of today, and one change to it.
    fn pod(at: &str, value: Value) -> Pod {
        let mut raw = json!({
            "metadata": {
                "labels": { "tekton.dev/taskRun": "build", "tekton.dev/taskRunUID": "u-1" },
                "annotations": {},
                "ownerReferences": [
                    { "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": "build", "uid": "u-1", "controller": true },
                ],
            },
            "spec": { "initContainers": [], "containers": [
                { "name": "istio-proxy" },
                step("step-b", "/tekton/run/1/out"),
                step("step-a", "/tekton/run/0/out"),
            ] },
        });
        *raw.pointer_mut(at).unwrap() = value;
        Pod::from_raw(&raw).unwrap()
    }

    fn step(name: &str, post_file: &str) -> Value {
        json!({ "name": name, "command": ["/tekton/bin/entrypoint"], "args": ["-post_file", post_file, "--", "true"] })
    }

    fn unchanged() -> Pod {
        pod("/metadata/annotations", json!({}))
    }

    #[test]
    fn a_task_runs_pod_is_eligible() {
        assert_eq!(eligible(&unchanged()), Ok(()));
    }

    #[rstest]
    #[case::v0_9("/tekton/tools/entrypoint")]
    #[case::v0_29("/tekton/bin/entrypoint")]
    fn the_entrypoint_of_every_tekton_since_0_9_is_known(#[case] command: &str) {
        assert_eq!(eligible(&pod("/spec/containers/1/command", json!([command]))), Ok(()));
    }

    #[rstest]
    #[case::alpha("tekton.dev/v1alpha1")]
    #[case::beta("tekton.dev/v1beta1")]
    #[case::one("tekton.dev/v1")]
    #[case::a_later_one("tekton.dev/v2")]
    fn the_owners_api_version_does_not_matter(#[case] version: &str) {
        assert_eq!(eligible(&pod("/metadata/ownerReferences/0/apiVersion", json!(version))), Ok(()));
    }

    #[rstest]
    #[case::no_label("/metadata/labels", json!({ "tekton.dev/pipelineRun": "p" }), NotOurs::NoLabel)]
    #[case::no_labels("/metadata/labels", Value::Null, NotOurs::NoLabel)]
    #[case::no_owner("/metadata/ownerReferences", Value::Null, NotOurs::NotControlled)]
    #[case::not_its_controller("/metadata/ownerReferences/0/controller", json!(false), NotOurs::NotControlled)]
    #[case::another_kind("/metadata/ownerReferences/0/kind", json!("CustomRun"), NotOurs::NotControlled)]
    #[case::another_group("/metadata/ownerReferences/0/apiVersion", json!("tekton.dev.example.com/v1"), NotOurs::NotControlled)]
    #[case::no_containers("/spec/containers", Value::Null, NotOurs::NoEntrypoint)]
    fn others_are_not(#[case] at: &str, #[case] value: Value, #[case] why: NotOurs) {
        assert_eq!(eligible(&pod(at, value)), Err(why));
    }

    #[rstest]
    #[case::v0_8(json!(["/builder/tools/entrypoint"]))]
    #[case::with_an_argument(json!(["/tekton/bin/entrypoint", "-post_file"]))]
    #[case::elsewhere(json!(["/ko-app/entrypoint"]))]
    #[case::no_command(json!([]))]
    fn a_command_that_is_not_exactly_the_entrypoint_is_none(#[case] command: Value) {
        let containers = json!([{ "name": "step-a", "command": command, "args": ["-post_file", "/builder/tools/0"] }]);
        assert_eq!(eligible(&pod("/spec/containers", containers)), Err(NotOurs::NoEntrypoint));
    }

    #[test]
    fn the_first_step_is_the_one_that_posts_file_0_wherever_it_stands() {
        assert_eq!(first_step(&unchanged()), Some(2));
    }

    #[rstest]
    #[case::v0_11("/tekton/tools/0", true)]
    #[case::v0_29("/tekton/run/0/out", true)]
    #[case::the_second("/tekton/run/1/out", false)]
    #[case::the_eleventh("/tekton/run/10/out", false)]
    #[case::the_eleventh_of_v0_11("/tekton/tools/10", false)]
    #[case::none("", false)]
    fn file_0_is_known_in_every_shape(#[case] post_file: &str, #[case] first: bool) {
        let pod = pod("/spec/containers", json!([step("step-a", post_file)]));
        assert_eq!(first_step(&pod).is_some(), first);
    }

    #[rstest]
    #[case::an_injected_container(json!([step("proxy", "/tekton/run/0/out")]))]
    #[case::the_users_own_argument(json!([{
        "name": "step-a", "command": ["/tekton/bin/entrypoint"], "args": ["--", "-post_file", "/tekton/run/0/out"],
    }]))]
    #[case::a_step_without_the_entrypoint(json!([{
        "name": "step-a", "command": ["sh"], "args": ["-post_file", "/tekton/run/0/out"],
    }]))]
    fn what_only_looks_like_it_is_not_the_first_step(#[case] containers: Value) {
        assert_eq!(first_step(&pod("/spec/containers", containers)), None);
    }

    #[test]
    fn init_containers_are_never_steps() {
        let pod = pod("/spec/initContainers", json!([step("step-init", "/tekton/run/0/out")]));
        assert_eq!(first_step(&pod), Some(2));
        assert_eq!(steps(&pod).map(|step| step.name.as_str()).collect::<Vec<_>>(), ["step-b", "step-a"]);
    }

    #[rstest]
    #[case::it_does(json!("u-1"), true)]
    #[case::another(json!("u-2"), false)]
    fn tekton_0_63_names_its_owner(#[case] uid: Value, #[case] names: bool) {
        assert_eq!(names_its_owner(&pod("/metadata/labels/tekton.dev~1taskRunUID", uid)), names);
    }

    #[test]
    fn older_tekton_does_not() {
        assert!(!names_its_owner(&pod("/metadata/labels", json!({ "tekton.dev/taskRun": "build" }))));
    }

    #[rstest]
    #[case::cancelled(json!({ "tekton.dev/cancel": "CANCEL" }), true)]
    #[case::another_value(json!({ "tekton.dev/cancel": "" }), false)]
    #[case::absent(Value::Null, false)]
    fn a_cancelled_pod_that_is_kept_is_known(#[case] annotations: Value, #[case] cancelled: bool) {
        assert_eq!(is_cancelled(&pod("/metadata/annotations", annotations)), cancelled);
    }
}
