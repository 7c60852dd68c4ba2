//! What is kept of an object that a watch hands over.
//!
//! [`crate::pod::model`] reads few fields to begin with; of those, what only the webhook looks at goes too, before
//! anything is stored. What is dropped may change no decision: a test decides every fixture slimmed and whole.
//!
//! A pod with Istio and Vault injected costs about 8 KiB in memory, where it is 19 KiB of JSON and 31 KiB as read (the test
//! `what_a_pod_costs` measures it). Pods that have ended are not kept at all.

use std::borrow::Cow;

use kube::api::{ApiResource, ObjectMeta, Resource};
use kube::core::DynamicResourceScope;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::pod::contract::{self, GATE_VOLUME};
use crate::pod::decide::START_ERRORS;
use crate::pod::model::{Container, ContainerStatus, Pod, Probe, RestartPolicy, State};
use crate::pod::verdict::{TaskRun, TaskRunMetadata, TaskRunStatus};
use crate::pod::versions::Node;
use crate::pod::{sidecars, tekton};

/// Whose annotations may decide something. What Tekton copies to a pod from a TaskRun's is small change.
const ANNOTATIONS: [&str; 2] = ["kickstand.dev/", "tekton.dev/"];
const LABELS: [&str; 3] = [contract::INJECT, tekton::TASK_RUN, tekton::TASK_RUN_UID];
/// Annotations of ours and Tekton's are short; a longer one is somebody's attempt to fill our memory, and is not read.
const ANNOTATION: usize = 16 << 10;
/// Tekton's entrypoint has some thirty words of its own before the `--`.
const STEP_ARGS: usize = 256;
/// No message of ours quotes more of a kubelet's.
const MESSAGE: usize = 200;
/// No version of a kubelet is longer.
const VERSION: usize = 64;

/// What can be watched: read from the raw object, and slimmed, in one go.
pub(crate) trait Slim: Clone + std::fmt::Debug + Send + Sync + Sized + 'static {
    /// As it comes from the API server.
    type Raw: DeserializeOwned;
    /// The identity that kube's watcher asks for, and what is kept.
    fn slim(raw: Self::Raw) -> (ObjectMeta, Self);
}

/// An object with the little that kube's watcher wants to know of it.
#[derive(Clone, Debug)]
pub(crate) struct Seen<T> {
    meta: ObjectMeta,
    /// What is kept.
    pub(crate) object: T,
}

impl<'de, T: Slim> Deserialize<'de> for Seen<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (meta, object) = T::slim(T::Raw::deserialize(deserializer)?);
        Ok(Self { meta, object })
    }
}

impl<T: Slim> Resource for Seen<T> {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl Slim for Pod {
    type Raw = Self;

    fn slim(mut raw: Self) -> (ObjectMeta, Self) {
        let meta = ObjectMeta {
            name: Some(raw.metadata.name.clone()),
            resource_version: Some(raw.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        };
        pod(&mut raw);
        (meta, raw)
    }
}

/// A TaskRun, as it comes: the version is for the watch alone.
#[derive(Deserialize)]
pub(crate) struct RawTaskRun {
    metadata: RawMetadata,
    #[serde(default)]
    status: Option<TaskRunStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
}

impl Slim for TaskRun {
    type Raw = RawTaskRun;

    fn slim(raw: RawTaskRun) -> (ObjectMeta, Self) {
        let RawMetadata { name, namespace, uid, resource_version } = raw.metadata;
        let meta =
            ObjectMeta { name: Some(name.clone()), resource_version: Some(resource_version), ..ObjectMeta::default() };
        let mut status = raw.status.unwrap_or_default();
        status.conditions.retain(|condition| condition.kind == "Succeeded");
        for condition in &mut status.conditions {
            condition.reason = String::new();
        }
        status.conditions.shrink_to_fit();
        status.retries_status.shrink_to_fit();
        // Only which of them have ended is read.
        status.steps.retain(|step| step.terminated.is_some());
        status.steps.shrink_to_fit();
        (meta, Self { metadata: TaskRunMetadata { name, namespace, uid }, status })
    }
}

/// A node, as it comes: of all its images, addresses and conditions nothing is read.
#[derive(Deserialize)]
pub(crate) struct RawNode {
    metadata: RawMetadata,
    #[serde(default)]
    status: Option<RawNodeStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawNodeStatus {
    #[serde(default)]
    node_info: Option<RawNodeInfo>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawNodeInfo {
    kubelet_version: String,
    operating_system: String,
}

impl Slim for Node {
    type Raw = RawNode;

    fn slim(raw: RawNode) -> (ObjectMeta, Self) {
        let RawMetadata { name, resource_version, .. } = raw.metadata;
        let meta =
            ObjectMeta { name: Some(name.clone()), resource_version: Some(resource_version), ..ObjectMeta::default() };
        let info = raw.status.unwrap_or_default().node_info.unwrap_or_default();
        let kubelet = info.kubelet_version.chars().take(VERSION).collect();
        (meta, Self { name, kubelet, windows: info.operating_system.eq_ignore_ascii_case("windows") })
    }
}

/// Drops what no decision reads.
fn pod(pod: &mut Pod) {
    let annotated = !pod.metadata.annotations.is_empty();
    pod.metadata.annotations.retain(|key, value| {
        key != contract::INJECTED && value.len() <= ANNOTATION && ANNOTATIONS.iter().any(|start| key.starts_with(start))
    });
    if annotated && pod.metadata.annotations.is_empty() {
        // Whether there are any decides how one is added: a patch must not take the map for absent, and replace it.
        pod.metadata.annotations.insert("…".to_owned(), String::new());
    }
    pod.metadata.labels.retain(|key, _| LABELS.contains(&key.as_str()));
    pod.metadata.owner_references.retain(|owner| owner.controller);
    pod.metadata.generate_name = String::new();

    pod.spec.volumes.retain(|volume| volume.name == GATE_VOLUME);
    pod.spec.volumes.shrink_to_fit();
    pod.spec.init_containers.retain(|container| container.restart_policy == Some(RestartPolicy::Always));
    pod.spec.init_containers.shrink_to_fit();
    for container in pod.spec.containers.iter_mut().chain(&mut pod.spec.init_containers) {
        slim_container(container);
    }
    pod.spec.containers.shrink_to_fit();

    let native = &pod.spec.init_containers;
    pod.status.init_container_statuses.retain(|status| native.iter().any(|container| container.name == status.name));
    for status in pod.status.container_statuses.iter_mut().chain(&mut pod.status.init_container_statuses) {
        slim_status(status);
    }
    pod.status.container_statuses.shrink_to_fit();
    pod.status.init_container_statuses.shrink_to_fit();
}

fn slim_container(container: &mut Container) {
    container.volume_mounts = Vec::new();
    container.env.retain(sidecars::env_tells_exit_zero);
    container.env.shrink_to_fit();
    // The first word names the program, and whether there are others tells Tekton's entrypoint from a look-alike.
    container.command.truncate(2);
    for word in container.command.iter_mut().skip(1) {
        *word = String::new();
    }
    container.command.shrink_to_fit();
    if tekton::is_step(container) {
        // What follows belongs to the user, and is not read; Tekton's own flags are few.
        let end = container.args.iter().position(|arg| arg == "--").unwrap_or(container.args.len());
        container.args.truncate(end.min(STEP_ARGS));
    } else {
        container.args.retain(sidecars::arg_tells_exit_zero);
        container.args.truncate(1);
    }
    container.args.shrink_to_fit();
    for probe in [&mut container.readiness_probe, &mut container.startup_probe].into_iter().flatten() {
        slim_probe(probe);
    }
}

/// Leaves what a message says of a probe: its kind, port and path.
fn slim_probe(probe: &mut Probe) {
    probe.exec = None;
    for action in [&mut probe.http_get, &mut probe.tcp_socket, &mut probe.grpc] {
        if let Some(serde_json::Value::Object(fields)) = action {
            fields.retain(|field, _| field == "port" || field == "path");
        }
    }
}

fn slim_status(status: &mut ContainerStatus) {
    status.image = String::new();
    for state in [&mut status.state, &mut status.last_state] {
        slim_state(state);
    }
}

fn slim_state(state: &mut State) {
    if let Some(waiting) = &mut state.waiting
        && waiting.message.chars().nth(MESSAGE).is_some()
    {
        waiting.message = waiting.message.chars().take(MESSAGE).collect();
    }
    if let Some(ended) = &mut state.terminated
        && !START_ERRORS.contains(&&*ended.reason)
    {
        ended.reason = String::new();
    }
}

#[cfg(test)]
mod tests;
