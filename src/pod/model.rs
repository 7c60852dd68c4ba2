//! The part of a Pod that Kickstand reads, and no more.
//!
//! Not `k8s-openapi`'s `Pod`: these few fields are all that a watch has to keep in memory, they include fields newer than
//! the oldest Kubernetes we compile for (`restartPolicyRules`, 1.34), and what is not read here cannot be misread.
//! Nothing is ever written from these types: patches are made of JSON pointers into the raw object.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

/// A Pod as the API server sends it to an admission webhook or in a watch.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pod {
    /// Name, labels, annotations, owner.
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// What was asked for.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: Spec,
    /// What the kubelet last reported; empty at admission.
    #[serde(deserialize_with = "null_is_default")]
    pub status: Status,
}

/// `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Metadata {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub generate_name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    #[serde(deserialize_with = "null_is_default")]
    pub resource_version: String,
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    pub owner_references: Vec<OwnerReference>,
    pub creation_timestamp: Option<Timestamp>,
    pub deletion_timestamp: Option<Timestamp>,
}

/// One of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct OwnerReference {
    #[serde(deserialize_with = "null_is_default")]
    pub api_version: String,
    #[serde(deserialize_with = "null_is_default")]
    pub kind: String,
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    #[serde(deserialize_with = "null_is_default")]
    pub controller: bool,
}

/// `spec`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Spec {
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "null_is_default")]
    pub init_containers: Vec<Container>,
    #[serde(deserialize_with = "null_is_default")]
    pub volumes: Vec<Volume>,
    /// Absent = `Always`, as the API server defaults it. Tekton always writes `Never`.
    pub restart_policy: Option<RestartPolicy>,
    /// Seconds from `status.startTime` after which the kubelet kills every container, side by side.
    pub active_deadline_seconds: Option<i64>,
    /// Seconds from TERM to KILL, for each container; the API server's default is 30.
    pub termination_grace_period_seconds: Option<i64>,
}

/// `restartPolicy` of a pod or of a container. A container's own comes before the pod's (Kubernetes ≥ 1.34, KEP-5307).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
    /// A value that this build does not know; read as the one least likely to end.
    #[serde(other)]
    Unknown,
}

/// One of `spec.containers` or `spec.initContainers`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Container {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub image: String,
    #[serde(deserialize_with = "null_is_default")]
    pub command: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub args: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub env: Vec<EnvVar>,
    #[serde(deserialize_with = "null_is_default")]
    pub volume_mounts: Vec<VolumeMount>,
    pub readiness_probe: Option<Probe>,
    pub startup_probe: Option<Probe>,
    pub lifecycle: Option<Lifecycle>,
    pub restart_policy: Option<RestartPolicy>,
    #[serde(deserialize_with = "null_is_default")]
    pub restart_policy_rules: Vec<RestartRule>,
}

/// One of `env`, where its value is written out.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct EnvVar {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub value: String,
}

/// One of `volumeMounts`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct VolumeMount {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub mount_path: String,
}

/// `lifecycle`: that there is a hook.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Lifecycle {
    pub post_start: Option<serde_json::Value>,
}

/// A probe: that it is there, and what people would look for when it fails.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Probe {
    pub http_get: Option<serde_json::Value>,
    pub tcp_socket: Option<serde_json::Value>,
    pub grpc: Option<serde_json::Value>,
    pub exec: Option<serde_json::Value>,
}

/// One of `restartPolicyRules`: restart, whatever the policy, on these exit codes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct RestartRule {
    #[serde(deserialize_with = "null_is_default")]
    pub action: String,
    pub exit_codes: Option<ExitCodes>,
}

/// The exit codes that a [`RestartRule`] is about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct ExitCodes {
    /// `In` or `NotIn`.
    #[serde(deserialize_with = "null_is_default")]
    pub operator: String,
    #[serde(deserialize_with = "null_is_default")]
    pub values: Vec<i32>,
}

/// One of `spec.volumes`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Volume {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardApi>,
}

/// A volume's `downwardAPI`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct DownwardApi {
    #[serde(deserialize_with = "null_is_default")]
    pub items: Vec<DownwardApiItem>,
}

/// One file of a `downwardAPI` volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct DownwardApiItem {
    #[serde(deserialize_with = "null_is_default")]
    pub path: String,
    pub field_ref: Option<FieldRef>,
}

/// The field that a file of a `downwardAPI` volume projects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct FieldRef {
    #[serde(deserialize_with = "null_is_default")]
    pub field_path: String,
}

/// `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Status {
    #[serde(deserialize_with = "null_is_default")]
    pub phase: Phase,
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    pub start_time: Option<Timestamp>,
    /// Sorted by name, not in the order of `spec.containers`. May be missing altogether, even in a pod that ended.
    #[serde(deserialize_with = "null_is_default")]
    pub container_statuses: Vec<ContainerStatus>,
    #[serde(deserialize_with = "null_is_default")]
    pub init_container_statuses: Vec<ContainerStatus>,
}

/// `status.phase`. `Pending` while any container waits that never ran, even beside running ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[allow(missing_docs)]
pub enum Phase {
    /// Not reported yet.
    #[default]
    #[serde(rename = "")]
    None,
    Pending,
    Running,
    Succeeded,
    Failed,
    /// `Unknown`, or one that this build does not know.
    #[serde(other)]
    Unknown,
}

/// One of `containerStatuses` or `initContainerStatuses`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ContainerStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub image: String,
    #[serde(deserialize_with = "null_is_default")]
    pub ready: bool,
    pub started: Option<bool>,
    #[serde(deserialize_with = "null_is_default")]
    pub restart_count: i32,
    #[serde(deserialize_with = "null_is_default")]
    pub state: State,
    #[serde(deserialize_with = "null_is_default")]
    pub last_state: State,
}

/// `state` or `lastState`: at most one of the three is there; none reads as waiting.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct State {
    pub waiting: Option<Waiting>,
    pub running: Option<Running>,
    pub terminated: Option<Terminated>,
}

/// `state.waiting`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Waiting {
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    #[serde(deserialize_with = "null_is_default")]
    pub message: String,
}

/// `state.running`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Running {
    pub started_at: Option<Timestamp>,
}

/// `state.terminated`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Terminated {
    #[serde(deserialize_with = "null_is_default")]
    pub exit_code: i32,
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

impl Pod {
    /// Reads a raw Pod.
    ///
    /// # Errors
    /// If a field that is read has another type than Kubernetes gives it; fields that are not read may be anything.
    pub fn from_raw(raw: &serde_json::Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(raw)
    }

    /// The kubelet's word on a container of `spec.containers`, if it has said anything yet.
    #[must_use]
    pub fn status_of(&self, container: &str) -> Option<&ContainerStatus> {
        self.status.container_statuses.iter().find(|status| status.name == container)
    }

    /// The kubelet's word on a container of `spec.initContainers`.
    #[must_use]
    pub fn init_status_of(&self, container: &str) -> Option<&ContainerStatus> {
        self.status.init_container_statuses.iter().find(|status| status.name == container)
    }

    /// An annotation's value.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.get(key).map(String::as_str)
    }

    /// A label's value.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.get(key).map(String::as_str)
    }
}

/// Go writes a nil slice or map as `null` where the field has no `omitempty`.
pub(super) fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl std::fmt::Display for Probe {
    /// `httpGet :8080/healthz`, `tcpSocket :5432`, `grpc :9000`, `exec`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |value: &serde_json::Value, field: &str| match value.get(field) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(serde_json::Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        match (&self.http_get, &self.tcp_socket, &self.grpc) {
            (Some(http), _, _) => write!(f, "httpGet :{}{}", text(http, "port"), text(http, "path")),
            (_, Some(tcp), _) => write!(f, "tcpSocket :{}", text(tcp, "port")),
            (_, _, Some(grpc)) => write!(f, "grpc :{}", text(grpc, "port")),
            _ => f.write_str("exec"),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::nothing(json!({}))]
    #[case::null_parts(json!({ "metadata": null, "spec": null, "status": null }))]
    #[case::null_lists(json!({
        "metadata": { "labels": null, "annotations": null, "ownerReferences": null, "creationTimestamp": null },
        "spec": { "containers": null, "initContainers": null, "volumes": null, "restartPolicy": null },
        "status": { "phase": null, "containerStatuses": null },
    }))]
    #[case::fields_of_tomorrow(json!({ "metadata": { "new": [1] }, "spec": { "new": { "a": null } }, "new": true }))]
    fn what_is_absent_null_or_unknown_is_no_error(#[case] raw: Value) {
        assert_eq!(Pod::from_raw(&raw).unwrap(), Pod::default());
    }

    #[rstest]
    #[case::metadata(json!({ "metadata": 1 }))]
    #[case::an_annotation(json!({ "metadata": { "annotations": { "a": true } } }))]
    #[case::containers(json!({ "spec": { "containers": {} } }))]
    #[case::an_argument(json!({ "spec": { "containers": [{ "args": [1] }] } }))]
    #[case::a_time(json!({ "metadata": { "creationTimestamp": "yesterday" } }))]
    #[case::no_object(json!("pod"))]
    fn a_wrong_type_where_we_read_is_an_error(#[case] raw: Value) {
        assert!(Pod::from_raw(&raw).is_err());
    }

    #[test]
    fn a_value_newer_than_this_build_reads_as_unknown() {
        let pod =
            Pod::from_raw(&json!({ "spec": { "restartPolicy": "Once" }, "status": { "phase": "Paused" } })).unwrap();
        assert_eq!((pod.spec.restart_policy, pod.status.phase), (Some(RestartPolicy::Unknown), Phase::Unknown));
    }

    #[rstest]
    #[case(json!({ "httpGet": { "port": 15021, "path": "/healthz/ready" } }), "httpGet :15021/healthz/ready")]
    #[case(json!({ "httpGet": { "port": "admin" } }), "httpGet :admin")]
    #[case(json!({ "tcpSocket": { "port": 5432 } }), "tcpSocket :5432")]
    #[case(json!({ "grpc": { "port": 9000 } }), "grpc :9000")]
    #[case(json!({ "exec": { "command": ["redis-cli", "ping"] } }), "exec")]
    fn a_probe_is_named_as_people_would_look_for_it(#[case] raw: Value, #[case] text: &str) {
        assert_eq!(Probe::deserialize(&raw).unwrap().to_string(), text);
    }
}
