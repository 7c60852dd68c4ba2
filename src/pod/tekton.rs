//! What makes a pod a TaskRun's, and which of its containers are steps (checked on Tekton v0.1 to v1.15).

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

/// Tekton keeps this pod, and has cancelled its run.
#[must_use]
pub fn is_cancelled(pod: &Pod) -> bool {
    pod.annotation(CANCEL) == Some(CANCELLED)
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
