//! What `kickstand doctor` makes of dry runs: pods like a TaskRun's, as the API server would have created them.
//!
//! The sample asks for native sidecars by annotation, which decides nothing that the default would not, but has the
//! webhook say why a sidecar stays classic. And it carries an annotation that the webhook takes away from every pod that
//! it sees.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use self::outcome::Outcome;
use super::contract::{READY, STRATEGY, Settings};
use super::facts::Facts;
use super::model::Pod;
use super::mutate::{NOT_HELD, STAY_CLASSIC};
use super::tekton;

mod outcome;
mod words;

/// The declared server of the sample.
pub const SIDECAR: &str = "sidecar-web";
const DOWNWARD: &str = "tekton-internal-downward";
const UID: &str = "0a0a0a0a-0000-4000-8000-000000000000";

/// A pod as Tekton would make it of a Task with one declared server. It meets the Pod Security Standard `restricted`,
/// so that it can be tried anywhere.
#[must_use]
pub fn sample(image: &str, annotations: &BTreeMap<String, String>) -> Value {
    let mut all = json!({ STRATEGY: "native" });
    for (key, value) in annotations {
        all[key] = json!(value);
    }
    all[READY] = json!("never: this is a dry run");
    let name = "kickstand-doctor";
    let labels = json!({ (tekton::TASK_RUN): name, (tekton::TASK_RUN_UID): UID });
    let security = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": all,
            // No blockOwnerDeletion: some API servers ask who may set it.
            "ownerReferences": [{
                "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": name, "uid": UID, "controller": true,
            }],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [
                {
                    "name": "step-one", "image": image, "command": ["/tekton/bin/entrypoint"],
                    "args": [
                        "-wait_file", "/tekton/downward/ready", "-wait_file_content", "-post_file", "/tekton/run/0/out",
                        "-termination_path", "/tekton/termination", "-step_metadata_dir", "/tekton/run/0/status",
                        "-entrypoint", "true", "--",
                    ],
                    "volumeMounts": [{ "name": DOWNWARD, "mountPath": "/tekton/downward", "readOnly": true }],
                    "securityContext": security,
                },
                {
                    "name": SIDECAR, "image": image, "command": ["serve"],
                    "readinessProbe": { "tcpSocket": { "port": 8080 } },
                    "securityContext": security,
                },
            ],
            "volumes": [{
                "name": DOWNWARD,
                "downwardAPI": { "items": [
                    { "path": "ready", "fieldRef": { "fieldPath": "metadata.annotations['tekton.dev/ready']" } },
                ] },
            }],
        },
    })
}

/// What the API server said to one dry run.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The pod as it would be, and the warnings that came with it.
    Created(Box<Value>, Vec<String>),
    /// It would not be created, in the API server's words.
    Refused(String),
    /// No answer, and why.
    None(String),
}

/// What is known besides; `None` = it could not be read.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// The namespace that is tried.
    pub namespace: String,
    /// Its labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Kickstand's own namespace.
    pub home: String,
    /// The controller's Lease, or why it is not known.
    pub lease: Lease,
    /// Who rewrites pods.
    pub hooks: Option<Hooks>,
}

/// The controller's Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// It could not be read, and why.
    Unread(String),
    /// Who holds it (empty: nobody), and what that one tells.
    Held(String, Facts),
}

impl Default for Lease {
    fn default() -> Self {
        Self::Unread("nobody has asked".to_owned())
    }
}

/// The webhook configurations whose rules take pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Ours.
    pub ours: Ours,
    /// Others that are called for the sample, as far as their rules and selectors tell.
    pub others: Vec<String>,
}

/// Our own configuration, and whether it asks for the sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ours {
    /// There is none.
    #[default]
    Missing,
    /// Its selectors leave this namespace, or the sample, out.
    Elsewhere,
    /// It has no caBundle.
    Untrusted,
    /// The webhook has to be called.
    Asks,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Well.
    Ok,
    /// No run is harmed, but it could be better.
    Warning,
    /// Runs are harmed, or not looked after; or it could not be found out.
    Error,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// The API server takes the pod.
    Created,
    /// Kickstand's webhook is called.
    Called,
    /// The first step waits for the sidecar.
    Held,
    /// The sidecar is the kubelet's to start and end.
    Native,
    /// What the controller tells.
    Controller,
    /// What else the webhook has to say.
    Settings,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at.
    pub check: Check,
    /// What is.
    pub message: String,
    /// What to do next; empty = nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// It may pass by itself: just installed, say.
    #[serde(skip)]
    pub may_pass: bool,
}

impl Finding {
    fn new(level: Level, check: Check, message: impl Into<String>, next: impl Into<String>) -> Self {
        Self { level, check, message: message.into(), next: next.into(), may_pass: false }
    }

    fn ok(check: Check, message: impl Into<String>) -> Self {
        Self::new(Level::Ok, check, message, "")
    }

    fn passing(mut self) -> Self {
        self.may_pass = true;
        self
    }
}

/// What these dry runs of the sample say.
#[must_use]
pub fn findings(sample: &Value, answers: &[Answer], around: &Around) -> Vec<Finding> {
    let settings = Pod::from_raw(sample).map(|pod| Settings::of(&pod).0).unwrap_or_default();
    let all = answers.len();
    let mut groups: Vec<(Outcome, usize)> = Vec::new();
    for outcome in answers.iter().map(Outcome::of) {
        match groups.iter_mut().find(|(other, _)| *other == outcome) {
            Some((_, count)) => *count += 1,
            None => groups.push((outcome, 1)),
        }
    }
    let count = |has: fn(&Outcome) -> bool| groups.iter().filter(|(it, _)| has(it)).map(|(_, count)| count).sum();
    let created: usize = count(|it| !matches!(it, Outcome::Silent(_) | Outcome::Refused(_)));
    let called = created - count(|it| *it == Outcome::NotCalled);
    let held = called - count(|it| matches!(it, Outcome::NotHeld(_) | Outcome::Stuck));
    let mut found = Vec::new();
    for (check, good, words) in [
        (Check::Created, created, "the API server takes the pod"),
        (Check::Called, called, "Kickstand's webhook is called"),
        (Check::Held, held, "the first step waits for the declared sidecar"),
    ] {
        if good > 0 {
            found.push(Finding::ok(check, format!("{words} ({good} of {all})")));
        }
    }
    // One odd answer among ten is one replica's, or comes from a change that has not reached it yet.
    let mixed = groups.len() > 1;
    found.extend(groups.iter().map(|(outcome, count)| {
        let mut finding = words::told(outcome, &settings, around, called > 0);
        finding.message = format!("{} ({count} of {all})", finding.message);
        finding.may_pass |= mixed && finding.level != Level::Ok;
        finding
    }));
    found.push(words::controller(around));
    found.extend(slips(answers));
    found
}

/// What else the webhook says of the sample's annotations.
fn slips(answers: &[Answer]) -> Vec<Finding> {
    let mut said: Vec<&str> = Vec::new();
    for answer in answers {
        let Answer::Created(_, warnings) = answer else { continue };
        for warning in warnings {
            let ours = warning.starts_with("kickstand: ");
            let known = warning.starts_with(NOT_HELD) || warning.starts_with(STAY_CLASSIC);
            if ours && !known && !said.contains(&warning.as_str()) {
                said.push(warning);
            }
        }
    }
    said.into_iter().map(|warning| Finding::new(Level::Warning, Check::Settings, warning, "")).collect()
}

#[cfg(test)]
mod tests;
