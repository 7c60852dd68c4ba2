//! What a TaskRun says of one of its pods.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::model::{Pod, null_is_default};
use super::{refusals, tekton};

/// The part of a TaskRun that is read (`tekton.dev/v1` and `v1beta1` alike).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct TaskRun {
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: TaskRunMetadata,
    #[serde(deserialize_with = "null_is_default")]
    pub status: TaskRunStatus,
}

/// `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct TaskRunMetadata {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
}

/// `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct TaskRunStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub pod_name: String,
    pub completion_time: Option<Timestamp>,
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<Condition>,
    #[serde(deserialize_with = "null_is_default")]
    pub retries_status: Vec<Attempt>,
    #[serde(deserialize_with = "null_is_default")]
    pub steps: Vec<StepState>,
}

/// One of `status.steps`: what Tekton has seen of a step.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct StepState {
    #[serde(deserialize_with = "null_is_default")]
    pub container: String,
    pub terminated: Option<Ended>,
}

/// That a step has ended. How, the pod itself says.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Ended {}

/// One of `status.conditions`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Condition {
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub kind: String,
    #[serde(deserialize_with = "null_is_default")]
    pub status: String,
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    pub last_transition_time: Option<Timestamp>,
    /// All that is kept of the message: it has [`refusals::WORDS`].
    #[serde(rename = "message", deserialize_with = "has_words_of_refusal")]
    pub native_refused: bool,
}

fn has_words_of_refusal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let message = Option::<Cow<'_, str>>::deserialize(deserializer)?;
    Ok(message.is_some_and(|message| message.contains(refusals::WORDS)))
}

/// One of `status.retriesStatus`: an attempt that failed and was tried again.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Attempt {
    #[serde(deserialize_with = "null_is_default")]
    pub pod_name: String,
    pub completion_time: Option<Timestamp>,
}

/// Is this pod's work judged, and how?
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Not yet, or nobody can tell (TaskRuns cannot be read).
    #[default]
    None,
    /// Not yet, although Tekton has recorded that every step has ended: it waits for something else in the pod. (A Tekton
    /// that is away, or behind with its work, has not recorded that.)
    Withheld,
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
        // The pod that is named now is the present attempt's, even if an earlier one had a pod of that name.
        let is_named = run.status.pod_name == name;
        let attempt = run.status.retries_status.iter().find(|attempt| attempt.pod_name == name);
        if let Some(attempt) = attempt.filter(|_| !is_named) {
            return Self::Recorded { outcome: Outcome::Superseded, at: attempt.completion_time };
        }
        if let Some(condition) = run.status.conditions.iter().find(|condition| condition.kind == "Succeeded") {
            let outcome = match condition.status.as_str() {
                "True" => Some(Outcome::Succeeded),
                "False" => Some(Outcome::Failed),
                _ => None,
            };
            if let Some(outcome) = outcome {
                return Self::Recorded { outcome, at: run.status.completion_time.or(condition.last_transition_time) };
            }
        }
        // Empty between an attempt's end and the next one's pod; a pod not named yet may be the next.
        if !run.status.pod_name.is_empty() && !is_named {
            return Self::Recorded { outcome: Outcome::Superseded, at: None };
        }
        if is_named && run.has_seen_the_end_of(pod) { Self::Withheld } else { Self::None }
    }
}

impl TaskRun {
    /// Its status shows every step of this pod as ended.
    fn has_seen_the_end_of(&self, pod: &Pod) -> bool {
        let has_seen =
            |name: &str| self.status.steps.iter().any(|state| state.container == name && state.terminated.is_some());
        tekton::steps(pod).all(|step| has_seen(&step.name))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::decide::tests::build::{RUN_UID, at, c, pod};
    use super::*;

    /// The verdict of `run-pod`, given its TaskRun's status.
    fn verdict(status: &Value) -> Verdict {
        let run = json!({ "metadata": { "name": "run", "namespace": "builds", "uid": RUN_UID }, "status": status });
        of(&serde_json::from_value(run).unwrap())
    }

    fn of(run: &TaskRun) -> Verdict {
        Verdict::of(&pod().step(c("one").running()).build(), Some(run))
    }

    fn recorded(outcome: Outcome, time: Option<i64>) -> Verdict {
        Verdict::Recorded { outcome, at: time.map(at) }
    }

    fn succeeded(status: &str) -> Value {
        json!([{ "type": "Other", "status": "False" }, { "type": "Succeeded", "status": status, "lastTransitionTime": at(70) }])
    }

    #[rstest]
    #[case::succeeded("True", Outcome::Succeeded)]
    #[case::failed("False", Outcome::Failed)]
    fn a_run_that_is_over_has_judged_its_pod(#[case] status: &str, #[case] outcome: Outcome) {
        let conditions = succeeded(status);
        let run = json!({ "podName": "run-pod", "conditions": conditions, "completionTime": at(61) });
        assert_eq!(verdict(&run), recorded(outcome, Some(61)));
        let run = json!({ "podName": "run-pod", "conditions": conditions });
        assert_eq!(verdict(&run), recorded(outcome, Some(70)), "by the condition's time, if there is no other");
    }

    #[rstest]
    #[case::runs(json!({ "podName": "run-pod", "conditions": succeeded("Unknown") }))]
    #[case::says_nothing(json!({ "podName": "run-pod", "conditions": succeeded("") }))]
    #[case::has_no_condition(json!({ "podName": "run-pod" }))]
    #[case::names_no_pod_yet(json!({ "conditions": succeeded("Unknown") }))]
    #[case::has_no_status(json!({}))]
    #[case::has_no_status_at_all(Value::Null)]
    #[case::has_nothing_but_null(json!({ "podName": null, "conditions": null, "retriesStatus": null, "completionTime": null }))]
    #[case::is_between_two_attempts(json!({
        "podName": "", "conditions": succeeded("Unknown"), "retriesStatus": [{ "podName": "another-pod" }]
    }))]
    #[case::tries_again_in_a_pod_of_the_same_name(json!({
        "podName": "run-pod", "conditions": succeeded("Unknown"), "retriesStatus": [{ "podName": "run-pod" }]
    }))]
    fn there_is_no_verdict_while_the_run(#[case] status: Value) {
        assert_eq!(verdict(&status), Verdict::None);
    }

    #[rstest]
    #[case::has_recorded_the_steps_end(json!([{ "container": "step-one", "terminated": { "exitCode": 0 } }]), Verdict::Withheld)]
    #[case::has_recorded_a_failed_steps_end(json!([{ "container": "step-one", "terminated": { "exitCode": 3 } }]), Verdict::Withheld)]
    #[case::saw_it_run_when_it_looked_last(json!([{ "container": "step-one", "running": {} }]), Verdict::None)]
    #[case::saw_another_one_end(json!([{ "container": "step-two", "terminated": {} }]), Verdict::None)]
    #[case::has_not_looked_yet(json!([]), Verdict::None)]
    #[case::says_nothing_of_it(Value::Null, Verdict::None)]
    fn a_verdict_is_withheld_only_by_a_tekton_that(#[case] steps: Value, #[case] expected: Verdict) {
        let run = json!({ "podName": "run-pod", "conditions": succeeded("Unknown"), "steps": steps });
        assert_eq!(verdict(&run), expected);
        let run = json!({ "conditions": succeeded("Unknown"), "steps": steps });
        assert_eq!(verdict(&run), Verdict::None, "whose steps they are, it does not say");
    }

    #[test]
    fn a_verdict_is_not_withheld_while_one_of_several_steps_goes_on() {
        let pod = pod().step(c("one").exited(0)).step(c("two").running()).build();
        let status = json!({ "podName": "run-pod", "steps": [{ "container": "step-one", "terminated": {} }] });
        let run = json!({ "metadata": { "name": "run", "namespace": "builds", "uid": RUN_UID }, "status": status });
        assert_eq!(Verdict::of(&pod, Some(&serde_json::from_value(run).unwrap())), Verdict::None);
    }

    #[rstest]
    #[case::which_goes_on(json!({ "podName": "run-pod-retry1", "conditions": succeeded("Unknown") }))]
    #[case::whose_next_pod_is_not_there_yet(json!({ "podName": "", "conditions": succeeded("Unknown") }))]
    #[case::which_succeeded_in_the_end(json!({ "podName": "run-pod-retry1", "conditions": succeeded("True") }))]
    fn an_attempt_of_a_retried_run_is_judged(#[case] mut status: Value) {
        status["retriesStatus"] = json!([{ "podName": "x" }, { "podName": "run-pod", "completionTime": at(61) }]);
        assert_eq!(verdict(&status), recorded(Outcome::Superseded, Some(61)));
    }

    #[test]
    fn a_run_that_names_another_pod_has_given_this_one_up() {
        let run = json!({ "podName": "another-pod", "conditions": succeeded("Unknown") });
        assert_eq!(verdict(&run), recorded(Outcome::Superseded, None));
    }

    #[test]
    fn a_run_that_is_gone_judges_no_more() {
        let pod = pod().step(c("one").running()).build();
        assert_eq!(Verdict::of(&pod, None), recorded(Outcome::Gone, None));
        let mut successor = TaskRun::default();
        successor.metadata.uid = "another-uid".to_owned();
        assert_eq!(of(&successor), recorded(Outcome::Gone, None), "another run of its name is not its run");
    }

    #[test]
    fn a_pod_without_an_owner_has_no_verdict() {
        let orphan = pod().set("/metadata/ownerReferences", json!([])).build();
        assert_eq!(Verdict::of(&orphan, None), Verdict::None);
    }
}
