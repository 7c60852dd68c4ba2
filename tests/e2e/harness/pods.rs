//! What a pod says, read the way a case asks.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod};
use kickstand::pod::contract::{GATE_FILE, GATE_VOLUME, READY};
use serde_json::{Value, json};

/// Questions to a pod.
pub(crate) trait PodExt {
    fn name(&self) -> &str;
    fn phase(&self) -> &str;
    fn containers(&self) -> &[Container];
    fn annotation(&self, key: &str) -> Option<&str>;
    fn status_of(&self, container: &str) -> Option<&ContainerStatus>;
    fn image_of(&self, container: &str) -> Option<&str>;
    /// The step containers, in their order.
    fn steps(&self) -> Vec<&str>;
    /// The first step waits for the gate's file.
    fn is_gated(&self) -> bool;
    /// When the gate was opened, by the controller's clock.
    fn gate_opened(&self) -> Option<Timestamp>;
    /// Ready, and running.
    fn is_ready(&self, container: &str) -> bool;
    fn is_running(&self, container: &str) -> bool;
    fn ended(&self, container: &str) -> Option<&ContainerStateTerminated>;
    /// When the step's own command was started, by the entrypoint's word.
    fn step_started(&self, step: &str) -> Option<Timestamp>;
    fn steps_done(&self) -> bool;
    fn is_terminal(&self) -> bool;
    /// A restartable init container.
    fn is_native(&self, container: &str) -> bool;
    /// The containers that are no steps.
    fn classic(&self) -> Vec<&str>;
    /// The first step waits for the file by which Tekton says that all are ready.
    fn waits_for_tekton(&self) -> bool;
}

impl PodExt for Pod {
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn phase(&self) -> &str {
        self.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
    }

    fn containers(&self) -> &[Container] {
        self.spec.as_ref().map_or(&[], |spec| &spec.containers)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn status_of(&self, container: &str) -> Option<&ContainerStatus> {
        let status = self.status.as_ref()?;
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        all.into_iter().find(|status| status.name == container)
    }

    fn image_of(&self, container: &str) -> Option<&str> {
        self.containers().iter().find(|it| it.name == container)?.image.as_deref()
    }

    fn steps(&self) -> Vec<&str> {
        self.containers().iter().map(|it| it.name.as_str()).filter(|name| name.starts_with("step-")).collect()
    }

    fn is_gated(&self) -> bool {
        let volume = self.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(|it| it.name == GATE_VOLUME);
        let waits = |args: &Vec<String>| {
            let own = args.iter().take_while(|arg| *arg != "--");
            own.flat_map(|arg| arg.split(',')).any(|file| file == GATE_FILE)
        };
        volume && self.containers().iter().any(|it| it.name.starts_with("step-") && it.args.as_ref().is_some_and(waits))
    }

    fn gate_opened(&self) -> Option<Timestamp> {
        self.annotation(READY)?.parse().ok()
    }

    fn is_ready(&self, container: &str) -> bool {
        self.status_of(container).is_some_and(|status| status.ready) && self.is_running(container)
    }

    fn is_running(&self, container: &str) -> bool {
        let state = self.status_of(container).and_then(|status| status.state.as_ref());
        state.is_some_and(|state| state.running.is_some())
    }

    fn ended(&self, container: &str) -> Option<&ContainerStateTerminated> {
        self.status_of(container)?.state.as_ref()?.terminated.as_ref()
    }

    fn step_started(&self, step: &str) -> Option<Timestamp> {
        started_at(self.ended(step)?.message.as_deref()?)
    }

    fn steps_done(&self) -> bool {
        let steps = self.steps();
        !steps.is_empty() && steps.iter().all(|step| self.ended(step).is_some())
    }

    fn is_terminal(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }

    fn is_native(&self, container: &str) -> bool {
        let init = self.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        init.into_iter().any(|it| it.name == container && it.restart_policy.as_deref() == Some("Always"))
    }

    fn classic(&self) -> Vec<&str> {
        self.containers().iter().map(|it| it.name.as_str()).filter(|name| !name.starts_with("step-")).collect()
    }

    fn waits_for_tekton(&self) -> bool {
        let args = self.containers().iter().flat_map(|it| it.args.iter().flatten());
        args.flat_map(|arg| arg.split(',')).any(|file| file.ends_with("/downward/ready"))
    }
}

/// From a termination message of Tekton's entrypoint: `[{"key":"StartedAt","value":"…","type":3},…]`.
fn started_at(message: &str) -> Option<Timestamp> {
    let entries: Vec<Value> = serde_json::from_str(message).ok()?;
    entries.iter().find(|entry| entry["key"] == "StartedAt")?["value"].as_str()?.parse().ok()
}

/// A pod's story in few words, one container a clause: for timelines.
pub(crate) fn in_words(pod: &Pod) -> String {
    let mut words = vec![pod.phase().to_owned()];
    let statuses = pod.status.iter().flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    for status in statuses {
        let state = status.state.clone().unwrap_or_default();
        let mut word = match (state.running, state.terminated, state.waiting) {
            (Some(_), _, _) if status.ready => "ready".to_owned(),
            (Some(_), _, _) => "running".to_owned(),
            (_, Some(ended), _) => format!("ended {}", ended.exit_code),
            (_, _, waiting) => waiting.and_then(|it| it.reason).unwrap_or_else(|| "waiting".to_owned()),
        };
        if status.restart_count > 0 {
            word = format!("{word} (restarted {}x)", status.restart_count);
        }
        words.push(format!("{} {word}", status.name));
    }
    if pod.is_gated() {
        words.push(if pod.gate_opened().is_some() { "gate open" } else { "gate shut" }.to_owned());
    }
    if pod.metadata.deletion_timestamp.is_some() {
        words.push("being deleted".to_owned());
    }
    words.join(", ")
}

/// A pod as Tekton would make it, without a Tekton: for dry runs.
pub(crate) fn like_a_task_runs(name: &str, annotations: &BTreeMap<String, String>, padding: usize) -> Value {
    let mut annotations = json!(annotations);
    if padding > 0 {
        annotations["e2e.kickstand.dev/padding"] = json!("x".repeat(padding));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": { "tekton.dev/taskRun": name, "tekton.dev/taskRunUID": "0a0a0a0a-0000-4000-8000-000000000000" },
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": name,
                "uid": "0a0a0a0a-0000-4000-8000-000000000000", "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "step-one", "image": "localhost/never-run:dev", "command": ["/tekton/bin/entrypoint"],
                    "args": [
                        "-post_file", "/tekton/run/0/out", "-termination_path", "/tekton/termination",
                        "-step_metadata_dir", "/tekton/run/0/status", "-entrypoint", "sh", "--", "-c", "true",
                    ],
                },
                {
                    "name": "sidecar-web", "image": "localhost/never-run:dev", "command": ["sh"],
                    "readinessProbe": { "tcpSocket": { "port": 8001 } },
                },
            ],
        },
    })
}
