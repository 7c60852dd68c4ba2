//! What is printed of a case: a line, and of a failed one all that helps to understand it.

use std::fmt::Write as _;
use std::time::Duration;

use kube::api::{Api, DynamicObject, ListParams};
use serde::Serialize;
use serde_json::Value;

use super::install;
use super::lab::task_run_resource;
use super::pods::PodExt as _;
use super::record;
use super::scene::Scene;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "outcome", content = "why")]
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

/// A case that has been tried.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Tried {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) notes: Vec<String>,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

impl Tried {
    pub(crate) fn line(&self) -> String {
        let word = match &self.outcome {
            Outcome::Passed => "ok".to_owned(),
            Outcome::Failed(_) => "FAILED".to_owned(),
            Outcome::Skipped(why) => format!("skipped ({why})"),
        };
        let mut line = format!("{:7.1} s  {}: {} … {word}", self.seconds, self.group, self.name);
        for note in &self.notes {
            let _ = write!(line, "\n             {note}");
        }
        line
    }
}

/// The table at the end; true if all is well.
pub(crate) fn summary(tried: &[Tried], took: Duration) -> (String, bool) {
    let count = |of: fn(&Outcome) -> bool| tried.iter().filter(|it| of(&it.outcome)).count();
    let failed = count(|it| matches!(it, Outcome::Failed(_)));
    let mut text = String::new();
    let mut group = "";
    for it in tried {
        if group != it.group {
            group = it.group;
            let _ = writeln!(text, "\n{group}");
        }
        let (mark, why) = match &it.outcome {
            Outcome::Passed => ("ok", String::new()),
            Outcome::Failed(why) => ("FAILED", why.lines().next().unwrap_or_default().chars().take(300).collect()),
            Outcome::Skipped(why) => ("skipped", why.clone()),
        };
        let _ = writeln!(text, "  {mark:7} {:7.1} s  {}", it.seconds, it.name);
        for line in it.notes.iter().chain((!why.is_empty()).then_some(&why)) {
            let _ = writeln!(text, "                      {line}");
        }
    }
    let _ = write!(
        text,
        "\n{} passed, {failed} failed, {} skipped, in {} s",
        count(|it| *it == Outcome::Passed),
        count(|it| matches!(it, Outcome::Skipped(_))),
        took.as_secs()
    );
    (text, failed == 0)
}

/// Everything that is known of a case that failed.
pub(crate) async fn failure(scene: &Scene<'_>, why: &str) -> String {
    let mut text = format!("expected and seen: {why}\n\nwhat happened in namespace {}:\n", scene.namespace);
    text += &scene.record.look(record::timeline);
    let runs = Api::<DynamicObject>::namespaced_with(scene.lab.client.clone(), &scene.namespace, &task_run_resource());
    for run in runs.list(&ListParams::default()).await.into_iter().flatten() {
        let mut status = run.data["status"].clone();
        if let Some(status) = status.as_object_mut() {
            status.retain(|key, _| !["taskSpec", "provenance", "artifacts"].contains(&key.as_str()));
        }
        let _ = write!(text, "\n--- TaskRun\n{}", yaml(serde_json::json!({ "status": status })));
    }
    match scene.lab.pods(&scene.namespace).list(&ListParams::default()).await {
        Ok(pods) => {
            for pod in pods.items.into_iter().take(3) {
                for container in pod.containers() {
                    let log =
                        scene.logs(pod.name(), &container.name).await.unwrap_or_else(|error| format!("{error:#}"));
                    let _ = writeln!(text, "\n--- log of {}\n{}", container.name, log.trim_end());
                }
                let _ = write!(text, "\n--- Pod\n{}", yaml(serde_json::json!(pod)));
            }
        }
        Err(error) => {
            let _ = writeln!(text, "\nno pods can be listed: {error}");
        }
    }
    for (pod, log) in install::logs(scene.lab, 100).await {
        let _ = write!(text, "\n--- log of {pod}, last 100 lines\n{log}");
    }
    text
}

/// Without what nobody reads.
fn yaml(mut object: Value) -> String {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for key in ["managedFields", "uid", "resourceVersion", "generation"] {
            metadata.remove(key);
        }
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        for key in ["tolerations", "schedulerName", "enableServiceLinks", "preemptionPolicy", "priority", "dnsPolicy"] {
            spec.remove(key);
        }
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(container) = container.as_object_mut() {
                    for key in ["terminationMessagePolicy", "imagePullPolicy", "resources", "env"] {
                        container.remove(key);
                    }
                }
            }
        }
    }
    serde_saphyr::to_string(&object).unwrap_or_else(|_| object.to_string())
}
