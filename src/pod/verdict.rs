//! What a TaskRun says of one of its pods.

use jiff::Timestamp;
use serde::Deserialize;

use super::model::Pod;
use super::tekton;

/// The part of a TaskRun that is read (`tekton.dev/v1` and `v1beta1` alike).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct TaskRun {
    pub metadata: TaskRunMetadata,
    pub status: TaskRunStatus,
}

/// `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct TaskRunMetadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

/// `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct TaskRunStatus {
    pub pod_name: String,
    pub completion_time: Option<Timestamp>,
    pub conditions: Vec<Condition>,
    pub retries_status: Vec<Attempt>,
}

/// One of `status.conditions`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: String,
    pub last_transition_time: Option<Timestamp>,
}

/// One of `status.retriesStatus`: an attempt that failed and was tried again.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Attempt {
    pub pod_name: String,
    pub completion_time: Option<Timestamp>,
}

/// Is this pod's work judged, and how?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Not yet, or nobody can tell (TaskRuns cannot be read).
    #[default]
    None,
    /// Yes: nothing that happens to the pod's sidecars can change it any more.
    Recorded {
        /// What it is.
        outcome: Outcome,
        /// When it was recorded, where the TaskRun says so.
        at: Option<Timestamp>,
    },
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The run succeeded.
    Succeeded,
    /// The run failed, was cancelled, or timed out.
    Failed,
    /// This pod was an attempt that failed, and was followed by another.
    Superseded,
    /// The TaskRun is gone, or another one has its name now.
    Gone,
}

impl Verdict {
    /// There is one.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        matches!(self, Self::Recorded { .. })
    }

    /// The verdict of a pod, given the TaskRun that has its owner's name now; `None` = there is none of that name.
    ///
    /// Whoever asks must know that there *is* no such TaskRun, not merely that it has not been seen: a watch that lags
    /// is not an answer.
    #[must_use]
    pub fn of(pod: &Pod, task_run: Option<&TaskRun>) -> Self {
        let gone = Self::Recorded { outcome: Outcome::Gone, at: None };
        let Some(owner) = tekton::owner(pod) else { return Self::None };
        let Some(run) = task_run.filter(|run| run.metadata.uid == owner.uid) else { return gone };
        let name = pod.metadata.name.as_str();
        if let Some(attempt) = run.status.retries_status.iter().find(|attempt| attempt.pod_name == name) {
            return Self::Recorded { outcome: Outcome::Superseded, at: attempt.completion_time };
        }
        let succeeded = run.status.conditions.iter().find(|condition| condition.kind == "Succeeded");
        if let Some(condition) = succeeded.filter(|condition| condition.status != "Unknown") {
            let outcome = if condition.status == "True" { Outcome::Succeeded } else { Outcome::Failed };
            return Self::Recorded { outcome, at: run.status.completion_time.or(condition.last_transition_time) };
        }
        // Empty between an attempt's end and the next one's pod; a pod not named yet may be the next.
        if !run.status.pod_name.is_empty() && run.status.pod_name != name {
            return Self::Recorded { outcome: Outcome::Superseded, at: None };
        }
        Self::None
    }
}
