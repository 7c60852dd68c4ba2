//! What the leading controller knows of the cluster, and the webhook cannot know by itself: one annotation on the Lease,
//! as JSON.
//!
//! Absent = nothing is known. Fields that this build does not know are ignored, and lost when this build leads: the
//! controller of a newer version finds them out again. Only the leader compares times, all of them its own: what stands in
//! the annotation holds, for whoever reads it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::native::Off;

/// How long a refusal counts: permissions and policies do change.
pub const REFUSAL_LASTS: SignedDuration = SignedDuration::from_hours(1);
/// Of more namespaces than these, the annotation would grow too long; those that are told last are kept.
pub const MOST_NAMESPACES: usize = 100;
/// Of more TaskRuns than these, the annotation would grow too long; the latest are kept.
pub const MOST_RUNS: usize = 100;
/// In so many namespaces within an hour, it is the cluster's, not a tenant's.
pub const TOO_MANY_REFUSALS: usize = 3;
/// Far longer than what is ever written; a longer one is not ours.
const LONGEST: usize = 64 << 10;

/// The annotation's content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Facts {
    /// Namespaces in which the API server refused to have a gate opened, each with the time at which that is forgotten: no
    /// pod is gated there.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gates_refused: BTreeMap<String, Timestamp>,
    /// Whether the nodes and the API server can run native sidecars; absent = not known (yet).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native: Option<Native>,
    /// Namespaces in which the API server refused a pod with native sidecars, since a webhook takes their `restartPolicy`
    /// away, each with the time at which that is forgotten.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub native_refused: BTreeMap<String, Timestamp>,
    /// So many namespaces had it that no pod of the cluster gets native sidecars any more, until an operator allows it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub native_refused_everywhere: bool,
    /// TaskRuns, by their UID, whose pods get no native sidecars for an hour: one could not be started.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub turned_classic: BTreeMap<String, TurnedClassic>,
}

/// A TaskRun whose pods are to have classic sidecars.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnedClassic {
    /// The UID of the pod that shows why, and is to be made anew.
    pub pod: String,
    /// When this was told.
    pub since: Timestamp,
}

/// Whether a cluster can run native sidecars.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "why")]
pub enum Native {
    /// Every node, and the API server.
    Possible,
    /// Not, and who cannot.
    Impossible(String),
}

impl Facts {
    /// Reads an annotation; what is not ours says nothing.
    #[must_use]
    pub fn read(text: Option<&str>) -> Self {
        let text = text.filter(|text| text.len() <= LONGEST);
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// As it stands in the annotation; `None` = there is nothing to say.
    #[must_use]
    pub fn written(&self) -> Option<String> {
        if *self == Self::default() { None } else { serde_json::to_string(self).ok() }
    }

    /// The API server refused to have a gate opened in this namespace. Is that news?
    pub fn gate_was_refused(&mut self, namespace: &str, now: Timestamp) -> bool {
        note(&mut self.gates_refused, namespace, now)
    }

    /// A gate was opened in this namespace. Is that news?
    pub fn gate_was_opened(&mut self, namespace: &str) -> bool {
        self.gates_refused.remove(namespace).is_some()
    }

    /// In this namespace, a gate would most likely stay shut.
    #[must_use]
    pub fn refuses_gates(&self, namespace: &str) -> bool {
        self.gates_refused.contains_key(namespace)
    }

    /// Can a pod of this TaskRun (its UID, if the pod says it) in this namespace have native sidecars?
    ///
    /// # Errors
    /// Why not.
    pub fn native(&self, namespace: &str, run: Option<&str>) -> Result<(), Off> {
        match &self.native {
            None => return Err(Off::Unknown),
            Some(Native::Impossible(who)) => return Err(Off::Cluster(who.clone())),
            Some(Native::Possible) => {}
        }
        if self.native_refused_everywhere {
            return Err(Off::Refused("in several namespaces, until an operator allows it".to_owned()));
        }
        if self.native_refused.contains_key(namespace) {
            return Err(Off::Refused("a webhook takes restartPolicy away from init containers".to_owned()));
        }
        if run.is_some_and(|run| self.turned_classic.contains_key(run)) {
            return Err(Off::Unstartable);
        }
        Ok(())
    }

    /// This pod has a native sidecar that cannot be started: the next one of its TaskRun (its UID) is to be classic. Is that
    /// news?
    pub fn turns_classic(&mut self, run: &str, pod: &str, now: Timestamp) -> bool {
        if self.turned_classic.contains_key(run) {
            return false;
        }
        self.turned_classic.insert(run.to_owned(), TurnedClassic { pod: pod.to_owned(), since: now });
        while self.turned_classic.len() > MOST_RUNS {
            let oldest = self.turned_classic.iter().min_by_key(|(_, turned)| turned.since).map(|(run, _)| run.clone());
            let Some(oldest) = oldest else { break };
            self.turned_classic.remove(&oldest);
        }
        true
    }

    /// The API server refused a pod with native sidecars in this namespace. Is that news?
    pub fn native_was_refused(&mut self, namespace: &str, now: Timestamp) -> bool {
        let is_news = note(&mut self.native_refused, namespace, now);
        let everywhere = self.native_refused.len() >= TOO_MANY_REFUSALS;
        let is_news = is_news || everywhere && !self.native_refused_everywhere;
        self.native_refused_everywhere |= everywhere;
        is_news
    }

    /// An operator has mended it. Is that news?
    pub fn native_is_allowed(&mut self) -> bool {
        let is_news = self.native_refused_everywhere || !self.native_refused.is_empty();
        self.native_refused_everywhere = false;
        self.native_refused.clear();
        is_news
    }

    /// Forgets what is over. What a predecessor's clock dated too far ahead lasts no longer than what is told now.
    pub fn forget(&mut self, now: Timestamp) {
        for noted in [&mut self.gates_refused, &mut self.native_refused] {
            noted.retain(|_, until| *until > now);
            for until in noted.values_mut() {
                *until = (*until).min(expiry(now));
            }
        }
        self.turned_classic.retain(|_, turned| now.duration_since(turned.since) < REFUSAL_LASTS);
        for turned in self.turned_classic.values_mut() {
            turned.since = turned.since.min(now);
        }
    }
}

/// Notes a namespace, and of too many keeps the latest. Is it news?
fn note(noted: &mut BTreeMap<String, Timestamp>, namespace: &str, now: Timestamp) -> bool {
    let is_news = noted.insert(namespace.to_owned(), expiry(now)).is_none();
    while noted.len() > MOST_NAMESPACES {
        let oldest = noted.iter().min_by_key(|(_, until)| **until).map(|(name, _)| name.clone());
        let Some(oldest) = oldest else { break };
        noted.remove(&oldest);
    }
    is_news
}

fn expiry(now: Timestamp) -> Timestamp {
    now.checked_add(REFUSAL_LASTS).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let mut facts = Facts::default();
        assert_eq!(facts.written(), None, "nothing to say is no annotation");
        assert!(facts.gate_was_refused("ci", at(0)) && !facts.gate_was_refused("ci", at(0)));
        assert_eq!(facts.written().unwrap(), r#"{"gatesRefused":{"ci":"1970-01-01T01:00:00Z"}}"#);
        assert_eq!(Facts::read(facts.written().as_deref()), facts);
        assert!(facts.refuses_gates("ci") && !facts.refuses_gates("cd"));
    }

    #[rstest]
    #[case::absent(None)]
    #[case::empty(Some(""))]
    #[case::no_json(Some("ci"))]
    #[case::no_object(Some("[]"))]
    #[case::no_time(Some(r#"{"gatesRefused":{"ci":"soon"}}"#))]
    #[case::only_what_a_newer_one_knows(Some(r#"{"ofTomorrow":{"cluster":true}}"#))]
    fn what_is_not_ours_says_nothing(#[case] text: Option<&str>) {
        assert_eq!(Facts::read(text), Facts::default());
    }

    #[test]
    fn what_is_too_long_says_nothing() {
        let text = format!("{}{{}}", " ".repeat(LONGEST));
        assert_eq!(Facts::read(Some(&text)), Facts::default());
    }

    #[test]
    fn what_a_newer_one_adds_does_not_hide_the_rest() {
        let text = r#"{"ofTomorrow":{"cluster":true},"gatesRefused":{"ci":"2026-01-01T00:00:00Z"}}"#;
        assert!(Facts::read(Some(text)).refuses_gates("ci"));
    }

    #[test]
    fn a_refusal_is_forgotten_after_an_hour_or_when_a_gate_was_opened() {
        let mut facts = Facts::default();
        facts.gate_was_refused("ci", at(0));
        facts.gate_was_refused("cd", at(10));
        facts.forget(at(3600));
        assert!(!facts.refuses_gates("ci") && facts.refuses_gates("cd"));
        assert!(facts.gate_was_opened("cd") && !facts.gate_was_opened("cd"));
        assert_eq!(facts, Facts::default());
    }

    #[test]
    fn a_refusal_of_the_future_lasts_no_longer_than_one_of_now() {
        let mut facts = Facts::default();
        facts.gate_was_refused("ci", at(1_000_000));
        facts.forget(at(0));
        facts.forget(at(3600));
        assert!(!facts.refuses_gates("ci"));
    }

    #[test]
    fn native_sidecars_are_off_until_the_cluster_is_known_to_run_them() {
        let mut facts = Facts::default();
        assert_eq!(facts.native("ci", None), Err(Off::Unknown));
        facts.native = Some(Native::Impossible("node a runs v1.30.0".into()));
        assert_eq!(facts.native("ci", None), Err(Off::Cluster("node a runs v1.30.0".into())));
        facts.native = Some(Native::Possible);
        assert_eq!(facts.native("ci", None), Ok(()));
        assert_eq!(facts.written().unwrap(), r#"{"native":{"state":"possible"}}"#);
        assert_eq!(Facts::read(facts.written().as_deref()), facts);
    }

    #[test]
    fn a_refusal_switches_native_sidecars_off_for_its_namespace_and_an_hour() {
        let mut facts = Facts { native: Some(Native::Possible), ..Facts::default() };
        assert!(facts.native_was_refused("ci", at(0)) && !facts.native_was_refused("ci", at(0)));
        assert!(matches!(facts.native("ci", None), Err(Off::Refused(_))));
        assert_eq!(facts.native("cd", None), Ok(()));
        facts.forget(at(3600));
        assert_eq!(facts.native("ci", None), Ok(()));
    }

    #[test]
    fn three_namespaces_switch_them_off_everywhere_until_an_operator_allows_them() {
        let mut facts = Facts { native: Some(Native::Possible), ..Facts::default() };
        for namespace in ["a", "b", "c"] {
            assert!(facts.native_was_refused(namespace, at(0)));
        }
        facts.forget(at(7200));
        assert!(matches!(facts.native("d", None), Err(Off::Refused(_))));
        assert_eq!(Facts::read(facts.written().as_deref()), facts);
        assert!(facts.native_is_allowed() && !facts.native_is_allowed());
        assert_eq!(facts.native("a", None), Ok(()));
    }

    #[test]
    fn a_task_run_whose_native_sidecar_cannot_be_started_gets_classic_ones_for_an_hour() {
        let mut facts = Facts { native: Some(Native::Possible), ..Facts::default() };
        assert!(facts.turns_classic("run", "pod", at(5)) && !facts.turns_classic("run", "another", at(6)));
        assert_eq!(facts.native("ci", Some("run")), Err(Off::Unstartable));
        assert_eq!((facts.native("ci", Some("next")), facts.native("ci", None)), (Ok(()), Ok(())));
        let written = facts.written().unwrap();
        assert!(
            written.contains(r#""turnedClassic":{"run":{"pod":"pod","since":"1970-01-01T00:00:05Z"}}"#),
            "{written}"
        );
        assert_eq!(Facts::read(Some(&written)), facts);
        facts.forget(at(3604));
        assert!(facts.turned_classic.contains_key("run"));
        facts.forget(at(3605));
        assert_eq!(facts.native("ci", Some("run")), Ok(()));
    }

    #[test]
    fn a_task_run_turned_classic_in_the_future_is_as_one_of_now() {
        let mut facts = Facts::default();
        facts.turns_classic("run", "pod", at(1_000_000));
        facts.forget(at(0));
        assert_eq!(facts.turned_classic["run"].since, at(0));
    }

    #[test]
    fn of_too_many_task_runs_the_latest_are_told() {
        let mut facts = Facts::default();
        let uid = |second: i64| format!("{second:036}");
        for second in 0..=100 {
            facts.turns_classic(&uid(second), &uid(second), at(second));
        }
        assert_eq!(facts.turned_classic.len(), MOST_RUNS);
        assert!(!facts.turned_classic.contains_key(&uid(0)));
        assert!(facts.written().unwrap().len() < LONGEST / 2);
    }

    #[test]
    fn of_too_many_namespaces_the_latest_are_told() {
        let mut facts = Facts::default();
        for second in 0..=100 {
            facts.gate_was_refused(&format!("ns-{second}"), at(second));
        }
        assert_eq!(facts.gates_refused.len(), MOST_NAMESPACES);
        assert!(!facts.refuses_gates("ns-0") && facts.refuses_gates("ns-100"));
        let longest = format!("{}{}", "x".repeat(53), "y".repeat(10));
        assert!(facts.written().unwrap().len() + MOST_NAMESPACES * longest.len() < LONGEST);
    }
}
