//! Pods for tests, as an API server would show them: `pod().step(c("one").exited(0)).sidecar(c("web").ready())`.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::pod::contract::{GATE_FILE, ORIGINAL_IMAGES, READY};
use crate::pod::gate;
use crate::pod::model::Pod;

/// The image that a swap writes.
pub(in crate::pod) const NOP: &str = "registry.example/kickstand/nop:2";
/// The UID of the pod's TaskRun.
pub(in crate::pod) const RUN_UID: &str = "run-uid";
const START: Timestamp = Timestamp::constant(1_767_261_600, 0);

/// That many seconds after the pod's start.
pub(in crate::pod) fn at(seconds: i64) -> Timestamp {
    START.checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

/// The other way round.
pub(in crate::pod) fn seconds(time: Timestamp) -> i64 {
    time.duration_since(START).as_secs()
}

/// A container and its status.
#[derive(Clone, Debug)]
pub(in crate::pod) struct C {
    spec: Map<String, Value>,
    status: Option<Map<String, Value>>,
}

/// A container without a status: the kubelet has not spoken of it yet.
pub(in crate::pod) fn c(name: &str) -> C {
    let spec = json!({ "name": name, "image": format!("registry.example/{name}:1") });
    C { spec: spec.as_object().unwrap().clone(), status: None }
}

impl C {
    pub(in crate::pod) fn name(&self) -> &str {
        self.spec["name"].as_str().unwrap()
    }

    fn spec(mut self, key: &str, value: Value) -> Self {
        self.spec.insert(key.to_owned(), value);
        self
    }

    fn status(mut self, key: &str, value: Value) -> Self {
        let name = self.spec["name"].clone();
        let status = self.status.get_or_insert_with(|| {
            let empty = json!({ "name": name, "ready": false, "restartCount": 0, "state": {}, "lastState": {} });
            empty.as_object().unwrap().clone()
        });
        status.insert(key.to_owned(), value);
        self
    }

    pub(in crate::pod) fn named(mut self, name: &str) -> Self {
        self.spec.insert("name".to_owned(), name.into());
        if let Some(status) = &mut self.status {
            status.insert("name".to_owned(), name.into());
        }
        self
    }

    pub(in crate::pod) fn image(self, image: &str) -> Self {
        self.spec("image", image.into())
    }

    pub(in crate::pod) fn command(self, command: &[&str]) -> Self {
        self.spec("command", json!(command))
    }

    pub(in crate::pod) fn args(self, args: &[&str]) -> Self {
        self.spec("args", json!(args))
    }

    pub(in crate::pod) fn env(self, name: &str, value: &str) -> Self {
        self.spec("env", json!([{ "name": name, "value": value }]))
    }

    /// Its command is in no image of ours.
    pub(in crate::pod) fn uncovered(self) -> Self {
        self.command(&["/opt/acme/server"])
    }

    pub(in crate::pod) fn readiness_probe(self) -> Self {
        self.spec("readinessProbe", json!({ "httpGet": { "port": 8080, "path": "/healthz" } }))
    }

    pub(in crate::pod) fn startup_probe(self) -> Self {
        self.spec("startupProbe", json!({ "tcpSocket": { "port": 8080 } }))
    }

    pub(in crate::pod) fn policy(self, policy: &str) -> Self {
        self.spec("restartPolicy", policy.into())
    }

    pub(in crate::pod) fn rule(self, operator: &str, values: &[i32]) -> Self {
        let codes = json!({ "operator": operator, "values": values });
        self.spec("restartPolicyRules", json!([{ "action": "Restart", "exitCodes": codes }]))
    }

    pub(in crate::pod) fn running(self) -> Self {
        self.status("state", json!({ "running": { "startedAt": at(1) } }))
    }

    pub(in crate::pod) fn ready(self) -> Self {
        self.running().status("ready", true.into())
    }

    /// It runs, and its startupProbe has not succeeded.
    pub(in crate::pod) fn starting(self) -> Self {
        self.running().status("started", false.into())
    }

    pub(in crate::pod) fn waiting(self, reason: &str) -> Self {
        self.status("state", json!({ "waiting": { "reason": reason } }))
    }

    pub(in crate::pod) fn waiting_because(self, reason: &str, message: &str) -> Self {
        self.status("state", json!({ "waiting": { "reason": reason, "message": message } }))
    }

    /// Ended, a minute after the pod's start.
    pub(in crate::pod) fn exited(self, code: i32) -> Self {
        self.exited_at(code, 60)
    }

    pub(in crate::pod) fn exited_at(self, code: i32, seconds: i64) -> Self {
        let times = json!({ "exitCode": code, "startedAt": at(1), "finishedAt": at(seconds) });
        self.status("state", json!({ "terminated": times }))
    }

    /// As containerd says it of a container that could not be started.
    pub(in crate::pod) fn start_error(self) -> Self {
        let times =
            json!({ "exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z", "finishedAt": null });
        self.status("state", json!({ "terminated": times }))
    }

    /// It never could be, so often, and waits for the next try.
    pub(in crate::pod) fn unstartable(self, times: i32) -> Self {
        let last = json!({ "exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z" });
        self.waiting("CrashLoopBackOff")
            .status("restartCount", times.into())
            .status("lastState", json!({ "terminated": last }))
    }

    pub(in crate::pod) fn restarted(self, times: i32, last_code: i32) -> Self {
        self.status("restartCount", times.into())
            .status("lastState", json!({ "terminated": { "exitCode": last_code, "finishedAt": at(2) } }))
    }
}

/// A TaskRun's pod, and its status.
#[derive(Clone, Debug)]
pub(in crate::pod) struct Build {
    raw: Value,
    gated: bool,
    tekton_waits: bool,
}

/// The pod of a Tekton of today, started at [`at`]`(0)`, without containers.
pub(in crate::pod) fn pod() -> Build {
    let raw = json!({
        "metadata": {
            "name": "run-pod",
            "namespace": "builds",
            "uid": "pod-uid",
            "resourceVersion": "7",
            "labels": { "tekton.dev/taskRun": "run", "tekton.dev/taskRunUID": RUN_UID },
            "annotations": { "tekton.dev/ready": "READY" },
            "ownerReferences": [{
                "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": "run", "uid": RUN_UID, "controller": true,
            }],
        },
        "spec": { "restartPolicy": "Never", "containers": [], "initContainers": [], "volumes": [] },
        "status": { "startTime": START, "containerStatuses": [], "initContainerStatuses": [] },
    });
    Build { raw, gated: false, tekton_waits: false }
}

impl Build {
    pub(in crate::pod) fn set(mut self, pointer: &str, value: Value) -> Self {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/");
        self.raw.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key, value);
        self
    }

    fn push(mut self, containers: &str, statuses: &str, container: C) -> Self {
        let mut add = |pointer: &str, value| self.raw.pointer_mut(pointer).unwrap().as_array_mut().unwrap().push(value);
        add(containers, Value::Object(container.spec));
        if let Some(status) = container.status {
            add(statuses, Value::Object(status));
        }
        self
    }

    /// A step; its name is given without Tekton's `step-`.
    pub(in crate::pod) fn step(self, step: C) -> Self {
        let containers = self.raw["spec"]["containers"].as_array().unwrap();
        let number =
            containers.iter().filter(|container| container["name"].as_str().unwrap().starts_with("step-")).count();
        let name = format!("step-{}", step.name());
        let post = format!("/tekton/run/{number}/out");
        let step = step.named(&name).command(&["/tekton/bin/entrypoint"]).args(&[
            "-post_file",
            &post,
            "-entrypoint",
            "make",
            "--",
        ]);
        self.push("/spec/containers", "/status/containerStatuses", step)
    }

    /// A classic sidecar; give the name that it has in the pod.
    pub(in crate::pod) fn sidecar(self, sidecar: C) -> Self {
        self.push("/spec/containers", "/status/containerStatuses", sidecar)
    }

    /// A restartable init container.
    pub(in crate::pod) fn native(self, sidecar: C) -> Self {
        self.push("/spec/initContainers", "/status/initContainerStatuses", sidecar.policy("Always"))
    }

    /// The first step waits for Tekton's own signal too, which has come if `signalled`.
    pub(in crate::pod) fn tekton_waits(mut self, signalled: bool) -> Self {
        self.tekton_waits = true;
        if signalled { self } else { self.without_annotation("tekton.dev/ready") }
    }

    /// The first step is held by our gate, which is shut.
    pub(in crate::pod) fn gated(mut self) -> Self {
        self.gated = true;
        self
    }

    /// The gate has opened.
    pub(in crate::pod) fn opened(self) -> Self {
        let mut opened = self.annotated(READY, "2026-01-01T10:00:10Z");
        opened.gated = true;
        opened
    }

    pub(in crate::pod) fn annotated(mut self, key: &str, value: &str) -> Self {
        self.raw["metadata"]["annotations"][key] = value.into();
        self
    }

    pub(in crate::pod) fn without_annotation(mut self, key: &str) -> Self {
        self.raw["metadata"]["annotations"].as_object_mut().unwrap().remove(key);
        self
    }

    /// Our note that a container was stopped.
    pub(in crate::pod) fn stopped(self, name: &str, image: &str, seconds: i64) -> Self {
        let note = json!({ name: { "image": image, "at": at(seconds) } }).to_string();
        self.annotated(ORIGINAL_IMAGES, &note)
    }

    pub(in crate::pod) fn cancelled(self) -> Self {
        self.annotated("tekton.dev/cancel", "CANCEL")
    }

    /// Tekton < 0.63, which does not name the pod's owner.
    pub(in crate::pod) fn old_tekton(mut self) -> Self {
        self.raw["metadata"]["labels"].as_object_mut().unwrap().remove("tekton.dev/taskRunUID");
        self
    }

    pub(in crate::pod) fn opted_out(mut self) -> Self {
        self.raw["metadata"]["labels"]["kickstand.dev/inject"] = "false".into();
        self
    }

    pub(in crate::pod) fn phase(self, phase: &str) -> Self {
        self.set("/status/phase", phase.into())
    }

    /// The pod's restart policy. (Tekton's is always `Never`; other webhooks have been seen to change it.)
    pub(in crate::pod) fn policy(self, policy: &str) -> Self {
        self.set("/spec/restartPolicy", policy.into())
    }

    pub(in crate::pod) fn deadline(self, seconds: i64) -> Self {
        self.set("/spec/activeDeadlineSeconds", seconds.into())
    }

    /// As the API server shows it.
    pub(in crate::pod) fn raw(mut self) -> Value {
        // The kubelet's rule: one that waits and never ran makes the pod Pending, whatever else runs.
        if self.raw["status"].get("phase").is_none() {
            let statuses = self.raw["status"]["containerStatuses"].as_array().unwrap();
            let never_ran = |status: &Value| {
                !status["state"].get("waiting").is_none_or(Value::is_null) && status["lastState"] == json!({})
            };
            let all = self.raw["spec"]["containers"].as_array().unwrap().len();
            let pending = statuses.len() < all || statuses.iter().any(never_ran);
            self.raw["status"]["phase"] = if pending { "Pending" } else { "Running" }.into();
        }
        let mut wait_for = Vec::new();
        if self.tekton_waits {
            wait_for.push("/tekton/downward/ready");
        }
        if self.gated {
            wait_for.push(GATE_FILE);
            self.raw["spec"]["volumes"].as_array_mut().unwrap().push(gate::volume());
        }
        let steps = self.raw["spec"]["containers"].as_array_mut().unwrap();
        let first = steps.iter_mut().find(|step| step["name"].as_str().unwrap().starts_with("step-"));
        if let Some(args) = first.and_then(|step| step["args"].as_array_mut())
            && !wait_for.is_empty()
        {
            let wait = ["-wait_file", &wait_for.join(","), "-wait_file_content"].map(Value::from);
            args.splice(0..0, wait);
        }
        self.raw
    }

    /// As we read it.
    pub(in crate::pod) fn build(self) -> Pod {
        Pod::from_raw(&self.raw()).unwrap()
    }
}
