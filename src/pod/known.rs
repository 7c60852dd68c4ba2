//! The table of sidecars that injectors or people commonly add: `known-sidecars.json`, and what an operator adds to it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::model::{Container, Pod};

/// What is known by a container's name or image. Of two rows that fit, the first decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known(Vec<Row>);

/// One kind of sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Row {
    /// What people call it, or its injector.
    pub name: String,
    /// Names of its containers: whole, or with a `*` at one or both ends.
    #[serde(default)]
    pub containers: Vec<String>,
    /// Its images, in the same way.
    #[serde(default)]
    pub images: Vec<String>,
    /// What it is to the others.
    #[serde(default)]
    pub role: Role,
    /// How its process ends on SIGTERM.
    #[serde(default)]
    pub on_term: OnTerm,
    /// Ends on its own once the steps have ended, and must not be stopped before.
    #[serde(default)]
    pub ends_by_itself: bool,
    /// How its injector is asked for a native one.
    pub ask: Option<Ask>,
    /// How a pod says that it will come, when it has no native mode.
    pub classic: Option<Mark>,
    /// Where the claims come from.
    #[serde(default)]
    pub why: String,
}

/// What a sidecar is to the others: helpers may need the network until they have ended, so they end first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Anything that is not known to be a network proxy.
    #[default]
    Helper,
    /// The pod's way to the network.
    NetworkProxy,
}

/// How a sidecar's process ends on SIGTERM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnTerm {
    /// With exit code 0.
    ExitsZero,
    /// With 0 if its environment or its arguments say so: see [`super::sidecars::env_tells_exit_zero`].
    ExitsZeroIfTold,
    /// Nobody knows.
    #[default]
    Unknown,
}

/// How an injector is asked for a native sidecar: by annotations of the pod, before it sees the pod.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ask {
    /// Only where the pod has this annotation (and not as `"false"` or `"disabled"`), by which the injector comes.
    pub when: Option<String>,
    /// What to set. One of these that is there already is the user's word, and all are left alone.
    pub set: BTreeMap<String, String>,
}

/// An annotation by which an injector comes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mark {
    /// It comes where the pod has this annotation.
    pub when: String,
    /// It leaves no sidecar where the pod has this one too.
    pub unless: Option<String>,
}

static BUILTIN: LazyLock<Known> = LazyLock::new(|| {
    // A test reads it, so that no build can go out in which it does not parse.
    Known::read(include_str!("known-sidecars.json")).unwrap_or(Known(Vec::new()))
});

impl Known {
    /// What this build knows.
    #[must_use]
    pub fn builtin() -> &'static Self {
        &BUILTIN
    }

    /// Reads a table: a JSON array of [`Row`]s.
    ///
    /// # Errors
    /// Where it is no JSON, or has a field or a value that no row has.
    pub fn read(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json).map(Self)
    }

    /// These rows first, then those of `self`.
    #[must_use]
    pub fn extended_by(&self, first: Self) -> Self {
        Self(first.0.into_iter().chain(self.0.iter().cloned()).collect())
    }

    /// The rows, in the order in which they are tried.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.0
    }

    /// The row of a container.
    #[must_use]
    pub fn of(&self, container: &Container) -> Option<&Row> {
        self.0.iter().find(|row| {
            row.containers.iter().any(|pattern| fits(pattern, &container.name))
                || row.images.iter().any(|pattern| fits(pattern, &container.image))
        })
    }

    /// An injector that the pod's annotations call, and that will add a classic sidecar: it has no native mode, or the
    /// user wants none of it.
    #[must_use]
    pub fn comes_classic(&self, pod: &Pod) -> Option<&str> {
        let row = self.0.iter().find(|row| {
            let marked = row.classic.as_ref().is_some_and(|mark| {
                is_on(pod, &mark.when) && !mark.unless.as_ref().is_some_and(|unless| is_on(pod, unless))
            });
            let refused = row.ask.as_ref().is_some_and(|ask| {
                ask.set.keys().any(|key| pod.annotation(key).is_some_and(is_off))
                    && ask.when.as_ref().is_none_or(|when| is_on(pod, when))
            });
            marked || refused
        })?;
        Some(&row.name)
    }

    /// What to set on a pod so that injectors add native sidecars. One that has been there already is not asked.
    pub fn asks<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = (&'a str, &'a str)> {
        let asked = self.0.iter().filter_map(|row| row.ask.as_ref()).filter(|ask| {
            ask.when.as_ref().is_none_or(|when| is_on(pod, when))
                && ask.set.keys().all(|key| pod.annotation(key).is_none())
        });
        asked.flat_map(|ask| ask.set.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }
}

fn is_on(pod: &Pod, annotation: &str) -> bool {
    pod.annotation(annotation).is_some_and(|value| !is_off(value))
}

fn is_off(value: &str) -> bool {
    matches!(value, "false" | "disabled" | "False" | "FALSE" | "0")
}

/// A pattern with a `*` at one or both of its ends, or none.
fn fits(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => text.contains(pattern.trim_matches('*')),
        (Some(end), None) => text.ends_with(end),
        (None, Some(start)) => text.starts_with(start),
        (None, None) => text == pattern,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(annotations: &Value) -> Pod {
        Pod::from_raw(&json!({ "metadata": { "annotations": annotations } })).unwrap()
    }

    fn asked(annotations: &Value) -> Vec<String> {
        let pod = pod(annotations);
        Known::builtin().asks(&pod).map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn the_table_of_this_build_can_be_read_and_every_row_says_why() {
        let known = Known::read(include_str!("known-sidecars.json")).unwrap();
        assert_eq!(&known, Known::builtin());
        for row in known.rows() {
            assert!(!row.why.is_empty() && !row.containers.is_empty(), "{row:?}");
        }
    }

    #[rstest]
    #[case("envoy", "envoy", true)]
    #[case("envoy", "envoy-2", false)]
    #[case("csql-*", "csql-ns-db", true)]
    #[case("csql-*", "my-csql-db", false)]
    #[case("*/envoy", "registry.example/envoy", true)]
    #[case("*/envoy:*", "registry.example/envoy:1", true)]
    #[case("*/envoy:*", "registry.example/envoy@sha256:0", false)]
    #[case("*", "anything", true)]
    fn a_pattern_may_have_a_star_at_its_ends(#[case] pattern: &str, #[case] text: &str, #[case] expected: bool) {
        assert_eq!(fits(pattern, text), expected);
    }

    #[test]
    fn an_operators_rows_come_first() {
        let first = Known::read(r#"[{ "name": "ours", "images": ["*/mesh:*"], "containers": ["envoy"] }]"#).unwrap();
        let known = Known::builtin().extended_by(first);
        let of = |name: &str, image: &str| {
            let container = Container { name: name.into(), image: image.into(), ..Container::default() };
            known.of(&container).map(|row| row.name.clone())
        };
        assert_eq!(of("x", "registry.example/mesh:1").as_deref(), Some("ours"));
        assert_eq!(of("envoy", "").as_deref(), Some("ours"));
        assert_eq!(of("istio-proxy", "").as_deref(), Some("Istio"));
        assert_eq!(of("web", "registry.example/web:1"), None);
    }

    #[rstest]
    #[case::no_json("[")]
    #[case::a_slip_of_the_pen(r#"[{ "name": "x", "container": ["x"] }]"#)]
    #[case::a_role_that_is_none(r#"[{ "name": "x", "role": "proxy" }]"#)]
    #[case::no_name(r#"[{ "containers": ["x"] }]"#)]
    fn a_table_with_a_mistake_is_refused(#[case] json: &str) {
        assert!(Known::read(json).is_err());
    }

    #[rstest]
    #[case::istio_may_come_by_the_namespace_alone(json!({}), &["sidecar.istio.io/nativeSidecar=true"])]
    #[case::nobody_is_asked_twice(json!({ "sidecar.istio.io/nativeSidecar": "true" }), &[])]
    #[case::a_users_no_stands(json!({ "sidecar.istio.io/nativeSidecar": "false" }), &[])]
    #[case::nor_is_it_repaired(json!({ "sidecar.istio.io/nativeSidecar": "" }), &[])]
    #[case::dapr_only_where_it_comes(
        json!({ "dapr.io/enabled": "true" }),
        &["sidecar.istio.io/nativeSidecar=true", "dapr.io/enable-native-sidecar=true"]
    )]
    #[case::dapr_not_where_it_is_off(json!({ "dapr.io/enabled": "false" }), &["sidecar.istio.io/nativeSidecar=true"])]
    #[case::linkerd_under_one_of_its_names_is_the_users(
        json!({ "linkerd.io/inject": "enabled", "config.alpha.linkerd.io/proxy-enable-native-sidecar": "false" }),
        &["sidecar.istio.io/nativeSidecar=true"]
    )]
    fn injectors_are_asked_by_annotations(#[case] annotations: Value, #[case] expected: &[&str]) {
        assert_eq!(asked(&annotations), expected);
    }

    #[rstest]
    #[case::nobody(json!({}), None)]
    #[case::vault(json!({ "vault.hashicorp.com/agent-inject": "true" }), Some("Vault"))]
    #[case::vault_is_off(json!({ "vault.hashicorp.com/agent-inject": "false" }), None)]
    #[case::vault_leaves_only_an_init_container(
        json!({ "vault.hashicorp.com/agent-inject": "true", "vault.hashicorp.com/agent-pre-populate-only": "true" }),
        None
    )]
    #[case::istio_is_wanted_classic(json!({ "sidecar.istio.io/nativeSidecar": "false" }), Some("Istio"))]
    #[case::istio_is_wanted_native(json!({ "sidecar.istio.io/nativeSidecar": "true" }), None)]
    #[case::a_dapr_that_does_not_come(json!({ "dapr.io/enable-native-sidecar": "false" }), None)]
    fn a_pod_says_who_comes_and_is_classic(#[case] annotations: Value, #[case] expected: Option<&str>) {
        assert_eq!(Known::builtin().comes_classic(&pod(&annotations)), expected);
    }
}
