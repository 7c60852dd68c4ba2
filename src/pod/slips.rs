//! Settings that have no effect on their pod, most likely for a slip of the pen: said at admission, and nothing hangs on it.

use super::contract::{
    FINISH, GATE, GATE_TIMEOUT, IGNORE, INJECT, INJECTED, KEEP_LOGS, NUDGED, ORIGINAL_IMAGES, READY, STOP, STRATEGY,
    Settings, harmless, names,
};
use super::model::Pod;

/// The annotations of a pod that somebody reads: those that users set first.
const ANNOTATIONS: [&str; 11] =
    [GATE, STOP, GATE_TIMEOUT, IGNORE, FINISH, KEEP_LOGS, STRATEGY, INJECTED, READY, NUDGED, ORIGINAL_IMAGES];
/// More of them, nobody reads.
const MOST: usize = 4;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Slip {
    /// No annotation of ours.
    #[error("annotation {PREFIX}{name} is not known{}", suggestion(*.nearest))]
    Unknown {
        /// What follows our prefix, shortened.
        name: String,
        /// What may have been meant.
        nearest: Option<&'static str>,
    },
    /// [`INJECT`] as an annotation.
    #[error("{INJECT} is read as a label of a pod or namespace, and does nothing as an annotation")]
    Label,
    /// A name in [`IGNORE`].
    #[error("annotation {IGNORE}: so far no container of the pod is called \"{0}\"")]
    Ignored(String),
}

const PREFIX: &str = "kickstand.dev/";

fn suggestion(nearest: Option<&str>) -> String {
    nearest.map(|nearest| format!("; is {nearest} meant?")).unwrap_or_default()
}

/// What a pod's author set to no effect.
#[must_use]
pub fn of(pod: &Pod, settings: &Settings) -> Vec<Slip> {
    let unknown = pod.metadata.annotations.keys().filter_map(|key| {
        let name = key.strip_prefix(PREFIX).filter(|_| !ANNOTATIONS.contains(&key.as_str()))?;
        Some(if key == INJECT { Slip::Label } else { Slip::Unknown { name: harmless(name), nearest: nearest(key) } })
    });
    let containers = || pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let is_there = |ignored: &str| containers().any(|container| names(&container.name).any(|name| name == ignored));
    let ignored = settings.ignore.iter().filter(|ignored| !is_there(ignored));
    unknown.chain(ignored.map(|name| Slip::Ignored(harmless(name)))).take(MOST).collect()
}

/// The one that looks most like it, if any does.
fn nearest(key: &str) -> Option<&'static str> {
    // What is longer than any of ours by far looks like none.
    let key = Some(key).filter(|key| key.len() < 64)?;
    let distance = |known: &&str| strsim::damerau_levenshtein(key, known);
    ANNOTATIONS.into_iter().min_by_key(distance).filter(|known| distance(known) <= 3)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::a_slip(json!({ "kickstand.dev/gate-timout": "5m" }), "annotation kickstand.dev/gate-timout is not known; is kickstand.dev/gate-timeout meant?")]
    #[case::letters_swapped(json!({ "kickstand.dev/ingore": "web" }), "annotation kickstand.dev/ingore is not known; is kickstand.dev/ignore meant?")]
    #[case::of_nothing_that_we_know(json!({ "kickstand.dev/colour": "x" }), "annotation kickstand.dev/colour is not known")]
    #[case::a_label(json!({ "kickstand.dev/inject": "false" }), "kickstand.dev/inject is read as a label of a pod or namespace, and does nothing as an annotation")]
    #[case::nobody_to_ignore(json!({ "kickstand.dev/ignore": "web,wbe,proxy,init" }), "annotation kickstand.dev/ignore: so far no container of the pod is called \"wbe\"")]
    #[case::what_is_known(json!({ "kickstand.dev/ignore": "sidecar-web", "kickstand.dev/injected": "{}", "other.dev/gate": "" }), "")]
    fn a_setting_without_effect_is_named(#[case] annotations: serde_json::Value, #[case] said: &str) {
        let pod = Pod::from_raw(&json!({
            "metadata": { "annotations": annotations },
            "spec": { "containers": [{ "name": "sidecar-web" }, { "name": "proxy" }], "initContainers": [{ "name": "init" }] },
        }))
        .unwrap();
        let said_of: Vec<String> = of(&pod, &Settings::of(&pod).0).iter().map(ToString::to_string).collect();
        assert_eq!(said_of.join("\n"), said);
    }

    #[test]
    fn not_every_one_of_a_hundred_mistakes_is_named() {
        let annotations: BTreeMap<String, &str> = (0..100).map(|at| (format!("kickstand.dev/x{at}"), "")).collect();
        let pod = Pod::from_raw(&json!({ "metadata": { "annotations": annotations } })).unwrap();
        assert_eq!(of(&pod, &Settings::default()).len(), MOST);
    }
}
