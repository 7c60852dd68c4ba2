use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::pod::decide::{Context, decide};
use crate::pod::facts::TurnedClassic;
use crate::pod::known::Known;
use crate::pod::verdict::{Outcome, Verdict};
use crate::pod::{gate, patch};

/// Every object in the fixtures that is a pod.
fn pods() -> Vec<(PathBuf, Value)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, Value)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let values: Vec<Value> = match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => vec![serde_json::from_str(&text).unwrap()],
                Some("jsonl") => text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
                _ => continue,
            };
            let objects = values.into_iter().map(|value| value.get("object").cloned().unwrap_or(value));
            found.extend(objects.filter(|object| object["kind"] == "Pod").map(|object| (path.clone(), object)));
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), &mut found);
    assert!(found.len() > 80, "{}", found.len());
    found
}

/// As it is, gated, with settings, restarting, and with its phase changed: what decides differently.
fn variants(pod: &Value) -> Vec<Value> {
    let mut variants = vec![pod.clone()];
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut pod = pod.clone();
        change(&mut pod);
        pod
    };
    variants.push(changed(&|pod| {
        let volumes = &mut pod["spec"]["volumes"];
        if !volumes.is_array() {
            *volumes = json!([]);
        }
        volumes.as_array_mut().unwrap().push(gate::volume());
        for container in pod["spec"]["containers"].as_array_mut().unwrap() {
            if container["name"].as_str().unwrap().starts_with("step-") && container["args"].is_array() {
                let gate = ["-wait_file", contract::GATE_FILE, "-wait_file_content"].map(Value::from);
                container["args"].as_array_mut().unwrap().splice(0..0, gate);
            }
        }
    }));
    variants.push(changed(&|pod| {
        pod["metadata"]["annotations"]["kickstand.dev/ignore"] = "db".into();
        pod["metadata"]["annotations"]["kickstand.dev/finish"] = "web=30s".into();
        pod["metadata"]["annotations"]["kickstand.dev/gate-timeout"] = "soon".into();
    }));
    variants.push(changed(&|pod| pod["metadata"]["annotations"]["kickstand.dev/keep-logs"] = "true".into()));
    variants.push(changed(&|pod| pod["metadata"]["annotations"] = Value::Null));
    variants.push(changed(&|pod| pod["spec"]["restartPolicy"] = "OnFailure".into()));
    variants.push(changed(&|pod| pod["status"]["phase"] = "Pending".into()));
    variants.push(changed(&|pod| pod["status"]["phase"] = "Running".into()));
    // Gated, and with a native sidecar that cannot be started.
    let mut stuck = variants[1].clone();
    stuck["spec"]["initContainers"] =
        json!([{ "name": "sidecar-x", "restartPolicy": "Always", "readinessProbe": { "exec": {} } }]);
    stuck["status"]["phase"] = "Pending".into();
    stuck["status"]["containerStatuses"] =
        json!([{ "name": "step-x", "state": { "waiting": { "reason": "PodInitializing" } } }]);
    stuck["status"]["initContainerStatuses"] = json!([{
        "name": "sidecar-x", "restartCount": 2,
        "lastState": { "terminated": { "exitCode": 128, "reason": "StartError" } },
    }]);
    variants.push(stuck);
    variants
}

/// The guard of this file: whatever `pod` comes to read must be kept.
#[test]
fn a_slimmed_pod_is_decided_like_the_whole_one() {
    let mut decisions = 0;
    for (path, raw) in pods() {
        for raw in variants(&raw) {
            let whole = Pod::from_raw(&raw).unwrap();
            let (_, slimmed) = Pod::slim(whole.clone());
            let base = whole.status.start_time.unwrap_or(Timestamp::UNIX_EPOCH);
            let turned = TurnedClassic { pod: whole.metadata.uid.clone(), since: base };
            for seconds in [1, 70, 200, 1900, 100_000] {
                let now = base + SignedDuration::from_secs(seconds);
                for outcome in [None, Some(Outcome::Succeeded), Some(Outcome::Failed), Some(Outcome::Gone)] {
                    let verdict =
                        outcome.map_or(Verdict::None, |outcome| Verdict::Recorded { outcome, at: Some(base) });
                    let context = Context {
                        verdict,
                        verdict_seen: Some(base),
                        now,
                        namespace_opted_out: false,
                        leaving: false,
                        turned_classic: Some(&turned),
                        nop_image: "nop",
                        tekton_nop_images: &[],
                        known: Known::builtin(),
                    };
                    let decision = decide(&whole, &context);
                    decisions += usize::from(!decision.actions.is_empty());
                    assert_eq!(decide(&slimmed, &context), decision, "{}", path.display());
                }
            }
            assert_eq!(
                json!(patch::open_gate(&slimmed, base)),
                json!(patch::open_gate(&whole, base)),
                "{}",
                path.display()
            );
        }
    }
    assert!(decisions > 1000, "{decisions}");
}

#[test]
fn a_task_run_is_read_whatever_is_missing() {
    let read = |raw: Value| serde_json::from_value::<Seen<TaskRun>>(raw).unwrap();
    let run = read(json!({ "metadata": { "name": "run", "namespace": "ci", "uid": "u", "resourceVersion": "5" } }));
    assert_eq!(run.object.status, TaskRunStatus::default());
    assert_eq!(run.meta.resource_version.as_deref(), Some("5"));
    let run = read(json!({ "metadata": { "name": "run" }, "status": null }));
    assert_eq!(run.object.metadata.name, "run");
    let run = read(json!({ "metadata": { "name": "run" }, "status": {
        "podName": "pod", "steps": [{}],
        "conditions": [{ "type": "Other", "status": "True" }, { "type": "Succeeded", "status": "True", "message": "…" }],
    } }));
    assert_eq!(run.object.status.conditions.len(), 1);
}

#[test]
fn a_node_is_its_name_its_kubelet_and_whether_it_runs_windows() {
    let read = |raw: Value| serde_json::from_value::<Seen<Node>>(raw).unwrap().object;
    let node = |kubelet: &str, windows| Node { name: "a".into(), kubelet: kubelet.into(), windows };
    let with = |info: Value| json!({ "metadata": { "name": "a" }, "status": { "nodeInfo": info, "images": [{}] } });
    assert_eq!(read(with(json!({ "kubeletVersion": "v1.34.1", "operatingSystem": "linux" }))), node("v1.34.1", false));
    assert!(read(with(json!({ "operatingSystem": "windows" }))).windows);
    assert_eq!(read(with(json!({ "kubeletVersion": "x".repeat(1000) }))).kubelet.len(), 64);
    // One that has only just been made.
    for status in [json!({}), json!(null), json!({ "nodeInfo": null })] {
        assert_eq!(read(json!({ "metadata": { "name": "a" }, "status": status })), node("", false));
    }
}

/// What a store holds of a running pod, in bytes: its own and its heap's. (What the allocator adds is not in it.)
#[test]
fn what_a_pod_costs() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/injected/combo/istio-hold-and-vault.json");
    let mut raw: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let running = json!({ "running": { "startedAt": "2026-12-01T12:00:00Z" } });
    for (statuses, containers) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        let status = |container: &Value| {
            json!({
                "name": container["name"], "image": container["image"], "imageID": "sha256:0123456789abcdef",
                "containerID": "containerd://0123456789abcdef", "ready": true, "started": true, "restartCount": 0,
                "state": running, "lastState": {},
            })
        };
        let containers = raw["spec"][containers].as_array().unwrap();
        raw["status"][statuses] = containers.iter().map(status).collect();
    }
    let whole = Pod::from_raw(&raw).unwrap();
    let (_, slimmed) = Pod::slim(whole.clone());
    let (json, whole, slimmed) = (raw.to_string().len(), cost::pod(&whole), cost::pod(&slimmed));
    println!("{json} bytes of JSON, {whole} bytes as read, {slimmed} slimmed");
    assert!(slimmed < 9 * 1024 && slimmed * 3 < whole, "{slimmed} of {whole}");
}

/// Sums what is allocated.
mod cost {
    use std::collections::BTreeMap;
    use std::mem::size_of;

    use crate::pod::model::{Container, ContainerStatus, Pod, Probe, State};

    fn texts(texts: &[&String]) -> usize {
        texts.iter().map(|text| text.capacity()).sum()
    }

    /// A map's nodes hold eleven entries each, whether used or not.
    fn map(map: &BTreeMap<String, String>) -> usize {
        let nodes = map.len().div_ceil(11) * (11 * 2 * size_of::<String>() + 32);
        nodes + map.iter().map(|(key, value)| texts(&[key, value])).sum::<usize>()
    }

    fn probe(probe: Option<&Probe>) -> usize {
        let actions = probe.map(|probe| [&probe.http_get, &probe.tcp_socket, &probe.grpc, &probe.exec]);
        actions.into_iter().flatten().flatten().map(|value| 64 + 2 * value.to_string().len()).sum()
    }

    fn container(container: &Container) -> usize {
        let words = container.command.iter().chain(&container.args);
        size_of::<Container>()
            + texts(&[&container.name, &container.image])
            + words.map(|word| size_of::<String>() + word.capacity()).sum::<usize>()
            + container.env.iter().map(|env| 2 * size_of::<String>() + texts(&[&env.name, &env.value])).sum::<usize>()
            + (container.volume_mounts.iter())
                .map(|mount| 2 * size_of::<String>() + texts(&[&mount.name, &mount.mount_path]))
                .sum::<usize>()
            + probe(container.readiness_probe.as_ref())
            + probe(container.startup_probe.as_ref())
    }

    fn state(state: &State) -> usize {
        let waiting = state.waiting.as_ref().map_or(0, |waiting| texts(&[&waiting.reason, &waiting.message]));
        waiting + state.terminated.as_ref().map_or(0, |ended| texts(&[&ended.reason]))
    }

    fn status(status: &ContainerStatus) -> usize {
        let own = size_of::<ContainerStatus>() + texts(&[&status.name, &status.image]);
        own + state(&status.state) + state(&status.last_state)
    }

    pub(super) fn pod(pod: &Pod) -> usize {
        let meta = &pod.metadata;
        let volumes = pod.spec.volumes.iter().map(|volume| size_of_val(volume) + texts(&[&volume.name]) + 200);
        let owners = meta
            .owner_references
            .iter()
            .map(|owner| size_of_val(owner) + texts(&[&owner.api_version, &owner.kind, &owner.name, &owner.uid]));
        size_of::<Pod>()
            + texts(&[&meta.name, &meta.namespace, &meta.uid, &meta.resource_version, &meta.generate_name])
            + map(&meta.labels)
            + map(&meta.annotations)
            + owners.sum::<usize>()
            + volumes.sum::<usize>()
            + pod.spec.containers.iter().chain(&pod.spec.init_containers).map(container).sum::<usize>()
            + (pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses))
                .map(status)
                .sum::<usize>()
    }
}
