//! Pods and TaskRuns, as Kubernetes and Tekton write them.

use serde_json::{Value, json};

use super::at;

pub(crate) const NAMESPACE: &str = "ci";
pub(crate) const NOP: &str = "registry.example/kickstand/nop:1";

/// A pod of the TaskRun `run`, with one step and one declared sidecar, `sidecar-db`; gated, started ten seconds before
/// the test, its sidecar running and not ready.
pub(crate) fn gated_pod(name: &str, run: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}"),
            "labels": { "tekton.dev/taskRun": run, "tekton.dev/taskRunUID": format!("uid-{run}") },
            "annotations": { "tekton.dev/ready": "", "somebody.example/else": "kept" },
            "ownerReferences": [{
                "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": run, "uid": format!("uid-{run}"),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "restartPolicy": "Never",
            "volumes": [{
                "name": "kickstand-gate",
                "downwardAPI": { "items": [
                    { "path": "ready", "fieldRef": { "fieldPath": "metadata.annotations['kickstand.dev/ready']" } },
                ] },
            }],
            "containers": [
                {
                    "name": "step-build", "image": "registry.example/go:1",
                    "command": ["/tekton/bin/entrypoint"],
                    "args": ["-wait_file", "/tekton/downward/ready,/kickstand/ready", "-wait_file_content",
                        "-post_file", "/tekton/run/0/out", "-entrypoint", "sh", "--", "-c", "make"],
                },
                {
                    "name": "sidecar-db", "image": "registry.example/postgres:17",
                    "command": ["sh"], "args": ["-c", "exec postgres"],
                    "readinessProbe": { "tcpSocket": { "port": 5432 } },
                },
            ],
        },
        "status": {
            "phase": "Running", "startTime": at(-10),
            "containerStatuses": [
                { "name": "sidecar-db", "ready": false, "restartCount": 0, "state": { "running": { "startedAt": at(-9) } } },
                { "name": "step-build", "ready": true, "restartCount": 0, "state": { "running": { "startedAt": at(-9) } } },
            ],
        },
    })
}

/// Its sidecar is a native one, which cannot be started: no step has.
pub(crate) fn stuck_pod(name: &str, run: &str) -> Value {
    let mut pod = gated_pod(name, run);
    let mut sidecar = pod["spec"]["containers"].as_array_mut().unwrap().remove(1);
    sidecar["restartPolicy"] = "Always".into();
    pod["spec"]["initContainers"] = json!([sidecar]);
    pod["status"]["phase"] = "Pending".into();
    pod["status"]["containerStatuses"] =
        json!([{ "name": "step-build", "restartCount": 0, "state": { "waiting": { "reason": "PodInitializing" } } }]);
    pod["status"]["initContainerStatuses"] = json!([{
        "name": "sidecar-db", "restartCount": 2, "state": { "waiting": { "reason": "CrashLoopBackOff" } },
        "lastState": { "terminated": { "exitCode": 128, "reason": "StartError" } },
    }]);
    pod
}

/// Its gate is open, and its step has ended so many seconds after the test's beginning.
pub(crate) fn done_pod(name: &str, run: &str, ended: i64) -> Value {
    let mut pod = gated_pod(name, run);
    pod["metadata"]["annotations"]["kickstand.dev/ready"] = at(-8).into();
    pod["metadata"]["annotations"]["kickstand.dev/nudged"] = at(-7).into();
    sidecar_ready(&mut pod);
    steps_done(&mut pod, ended);
    pod
}

pub(crate) fn sidecar_ready(pod: &mut Value) {
    pod["status"]["containerStatuses"][0]["ready"] = true.into();
}

pub(crate) fn steps_done(pod: &mut Value, ended: i64) {
    pod["status"]["containerStatuses"][1]["ready"] = false.into();
    pod["status"]["containerStatuses"][1]["state"] =
        json!({ "terminated": { "exitCode": 0, "reason": "Completed", "startedAt": at(-7), "finishedAt": at(ended) } });
}

/// A TaskRun at work in this pod.
pub(crate) fn running(run: &str, pod: &str) -> Value {
    json!({
        "apiVersion": "tekton.dev/v1", "kind": "TaskRun",
        "metadata": { "name": run, "namespace": NAMESPACE, "uid": format!("uid-{run}") },
        "status": {
            "podName": pod,
            "conditions": [{ "type": "Succeeded", "status": "Unknown", "reason": "Running", "lastTransitionTime": at(-10) }],
        },
    })
}

/// Tekton has seen its step end, and gives no verdict.
pub(crate) fn saw_steps_end(run: &mut Value) {
    run["status"]["steps"] = json!([{ "name": "build", "container": "step-build", "terminated": { "exitCode": 0 } }]);
}

/// Its verdict, so many seconds after the test's beginning.
pub(crate) fn judge(run: &mut Value, succeeded: bool, when: i64) {
    run["status"]["completionTime"] = at(when).into();
    run["status"]["conditions"] = json!([{
        "type": "Succeeded", "status": if succeeded { "True" } else { "False" },
        "reason": if succeeded { "Succeeded" } else { "Failed" }, "lastTransitionTime": at(when),
    }]);
}

pub(crate) fn judged(run: &str, pod: &str, succeeded: bool, when: i64) -> Value {
    let mut object = running(run, pod);
    judge(&mut object, succeeded, when);
    object
}

pub(crate) fn namespace(name: &str, opted_out: bool) -> Value {
    let labels = if opted_out { json!({ "kickstand.dev/inject": "false" }) } else { json!({}) };
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "uid": name, "labels": labels } })
}

pub(crate) fn node(name: &str, kubelet: &str) -> Value {
    let info = json!({ "kubeletVersion": kubelet, "operatingSystem": "linux", "kernelVersion": "6.12" });
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "uid": name }, "status": { "nodeInfo": info } })
}

/// A TaskRun whose pod the API server refused, so many seconds after the test's beginning: a webhook took `restartPolicy`
/// away from a native sidecar.
pub(crate) fn refused_native(run: &str, namespace: &str, when: i64) -> Value {
    let message = format!(
        "failed to create task run pod \"{run}\": Pod \"{run}-pod\" is invalid: spec.initContainers[2].readinessProbe: \
         Forbidden: may not be set for init containers without restartPolicy=Always. Maybe missing or invalid Task {namespace}/"
    );
    json!({
        "apiVersion": "tekton.dev/v1", "kind": "TaskRun",
        "metadata": { "name": run, "namespace": namespace, "uid": format!("uid-{run}") },
        "status": { "completionTime": at(when), "podName": "", "conditions": [{
            "type": "Succeeded", "status": "False", "reason": "PodCreationFailed", "message": message,
            "lastTransitionTime": at(when),
        }] },
    })
}
