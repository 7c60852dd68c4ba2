//! Pods that the API server refused since a webhook takes `restartPolicy` away from native sidecars: Tekton records its
//! words in the TaskRun.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

use super::verdict::TaskRun;

/// The API server's words for a probe or a hook of an init container that has lost its `restartPolicy`.
pub const WORDS: &str = "may not be set for init containers without restartPolicy=Always";
/// An older one says nothing of today.
const RECENT: SignedDuration = SignedDuration::from_mins(10);
/// Between two leaders nobody leads for some seconds, and two clocks differ.
const BEFORE_WE_LED: SignedDuration = SignedDuration::from_mins(1);

/// One TaskRun whose pod was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The TaskRun's namespace.
    pub namespace: String,
    /// The TaskRun's name.
    pub name: String,
    /// The TaskRun's UID.
    pub uid: String,
    /// When, as Tekton says.
    pub at: Timestamp,
}

impl Refusal {
    /// Was the pod of this TaskRun refused? A TaskRun that has one was not: what its steps say is in the same message.
    #[must_use]
    pub fn of(run: &TaskRun) -> Option<Self> {
        let condition = run.status.conditions.iter().find(|condition| condition.kind == "Succeeded")?;
        let refused = condition.native_refused && condition.status != "True" && run.status.pod_name.is_empty();
        let at = condition.last_transition_time.or(run.status.completion_time).filter(|_| refused)?;
        let metadata = &run.metadata;
        Some(Self { namespace: metadata.namespace.clone(), name: metadata.name.clone(), uid: metadata.uid.clone(), at })
    }
}

/// The refusals that were seen, by the TaskRun's UID, and whether they were counted. A watch shows each several times.
#[derive(Debug, Default)]
pub struct Refusals(HashMap<String, (Refusal, bool)>);

impl Refusals {
    /// One was seen.
    pub fn saw(&mut self, refusal: Refusal, now: Timestamp) {
        self.0.retain(|_, (refusal, _)| is_recent(refusal, now));
        if is_recent(&refusal, now) {
            self.0.entry(refusal.uid.clone()).or_insert((refusal, false));
        }
    }

    /// Those to be counted now by who has led since `since`; each once. What happened under a predecessor is in what it
    /// left: counted again, it would undo what an operator has allowed in the meantime.
    pub fn news(&mut self, since: Timestamp, now: Timestamp) -> Vec<Refusal> {
        let since = since - BEFORE_WE_LED;
        let news = self.0.values_mut().filter(|(refusal, counted)| !counted && refusal.at >= since);
        let news = news.filter(|(refusal, _)| is_recent(refusal, now));
        news.map(|(refusal, counted)| {
            *counted = true;
            refusal.clone()
        })
        .collect()
    }
}

fn is_recent(refusal: &Refusal, now: Timestamp) -> bool {
    now.duration_since(refusal.at) <= RECENT
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// The message is Tekton's, around the API server's.
    fn run(status: &str, message: &str) -> Value {
        json!({
            "metadata": { "name": "run", "namespace": "ci", "uid": "u" },
            "status": { "conditions": [{
                "type": "Succeeded", "status": status, "reason": "PodCreationFailed", "message": message,
                "lastTransitionTime": "1970-01-01T00:00:05Z",
            }] },
        })
    }

    const MESSAGE: &str = "failed to create task run pod \"run\": Pod \"run-pod\" is invalid: spec.initContainers[2].readinessProbe: \
        Forbidden: may not be set for init containers without restartPolicy=Always. Maybe missing or invalid Task ci/build";

    #[rstest]
    #[case::refused(run("False", MESSAGE), true)]
    #[case::to_be_retried(run("Unknown", MESSAGE), true)]
    #[case::over_something_else(run("False", "exceeded quota"), false)]
    #[case::without_a_message(json!({ "status": { "conditions": [{ "type": "Succeeded", "message": null }] } }), false)]
    #[case::by_the_words_of_a_step({
        let mut run = run("False", MESSAGE);
        run["status"]["podName"] = "run-pod".into();
        run
    }, false)]
    #[case::some_time({
        let mut run = run("False", MESSAGE);
        run["status"]["conditions"][0]["lastTransitionTime"] = Value::Null;
        run
    }, false)]
    fn a_task_run_says_that_its_pod_was_refused(#[case] run: Value, #[case] expected: bool) {
        let refusal = Refusal::of(&serde_json::from_value(run).unwrap());
        let ours = Refusal { namespace: "ci".into(), name: "run".into(), uid: "u".into(), at: at(5) };
        assert_eq!(refusal, expected.then_some(ours));
    }

    fn refusal(uid: &str, seconds: i64) -> Refusal {
        Refusal { namespace: "ci".into(), name: uid.into(), uid: uid.into(), at: at(seconds) }
    }

    #[rstest]
    #[case::while_we_led(100, 50, 120, 1)]
    #[case::while_nobody_led(100, 150, 170, 1)]
    #[case::under_our_predecessor(100, 200, 210, 0)]
    #[case::long_ago(100, 0, 800, 0)]
    #[case::by_a_clock_ahead_of_ours(130, 100, 120, 1)]
    fn only_what_is_ours_and_recent_counts(
        #[case] happened: i64,
        #[case] led: i64,
        #[case] now: i64,
        #[case] count: usize,
    ) {
        let mut refusals = Refusals::default();
        refusals.saw(refusal("u", happened), at(now));
        assert_eq!(refusals.news(at(led), at(now)).len(), count);
    }

    #[test]
    fn a_task_run_counts_once_however_often_it_is_seen_and_is_forgotten() {
        let mut refusals = Refusals::default();
        for now in [100, 110, 600] {
            refusals.saw(refusal("u", 100), at(now));
        }
        refusals.saw(refusal("v", 100), at(110));
        assert_eq!(refusals.news(at(0), at(110)).len(), 2);
        refusals.saw(refusal("u", 100), at(120));
        assert!(refusals.news(at(0), at(120)).is_empty());
        refusals.saw(refusal("w", 900), at(900));
        assert_eq!(refusals.0.len(), 1);
    }
}
