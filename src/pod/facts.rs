//! What the leading controller knows of the cluster, and the webhook cannot know by itself: one annotation on the Lease,
//! as JSON.
//!
//! Absent = nothing is known. Fields that this build does not know are ignored, and lost when this build leads: the
//! controller of a newer version finds them out again. Only the leader compares times, all of them its own: what stands in
//! the annotation holds, for whoever reads it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// How long a refusal counts: permissions and policies do change.
pub const REFUSAL_LASTS: SignedDuration = SignedDuration::from_hours(1);
/// Of more namespaces than these, the annotation would grow too long; those that are told last are kept.
pub const MOST_NAMESPACES: usize = 100;
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
        let is_news = self.gates_refused.insert(namespace.to_owned(), expiry(now)).is_none();
        while self.gates_refused.len() > MOST_NAMESPACES {
            let oldest = self.gates_refused.iter().min_by_key(|(_, until)| **until).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { break };
            self.gates_refused.remove(&oldest);
        }
        is_news
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

    /// Forgets what is over. What a predecessor's clock dated too far ahead lasts no longer than what is told now.
    pub fn forget(&mut self, now: Timestamp) {
        self.gates_refused.retain(|_, until| *until > now);
        for until in self.gates_refused.values_mut() {
            *until = (*until).min(expiry(now));
        }
    }
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
    #[case::only_what_a_newer_one_knows(Some(r#"{"native":{"cluster":true}}"#))]
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
        let text = r#"{"native":{"cluster":true},"gatesRefused":{"ci":"2026-01-01T00:00:00Z"}}"#;
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
