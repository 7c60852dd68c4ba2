//! What the API server's audit log says of the webhooks that were called for a pod.

use std::io::{BufRead as _, BufReader};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::scene::{Scene, Skip};

const CALLED: &str = "mutation.webhook.admission.k8s.io/round_";

/// One call of a mutating webhook.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) round: u32,
    pub(crate) index: u32,
    pub(crate) configuration: String,
    pub(crate) mutated: bool,
}

#[derive(Deserialize)]
struct Said {
    configuration: String,
    mutated: bool,
}

/// The calls for the creation of a pod, in their order.
pub(crate) fn calls(scene: &Scene<'_>, pod: &str) -> Result<Vec<Call>> {
    let Some(path) = &scene.lab.options.audit_log else {
        return Err(Skip("it needs the API server's audit log: give it by --audit-log".to_owned()).into());
    };
    let file = std::fs::File::open(path).with_context(|| format!("cannot read the audit log {}", path.display()))?;
    for line in BufReader::new(file).lines() {
        let line = line?;
        if !line.contains(&scene.namespace) || !line.contains("\"verb\":\"create\"") {
            continue;
        }
        let event: Value = serde_json::from_str(&line).context("a line of the audit log")?;
        let object = &event["objectRef"];
        if object["resource"] != "pods" || object["name"] != pod || object["namespace"] != scene.namespace.as_str() {
            continue;
        }
        let mut calls = Vec::new();
        for (key, value) in event["annotations"].as_object().into_iter().flatten() {
            let Some((round, index)) = key.strip_prefix(CALLED).and_then(|rest| rest.split_once("_index_")) else {
                continue;
            };
            let said: Said = serde_json::from_str(value.as_str().unwrap_or_default())?;
            let (round, index) = (round.parse()?, index.parse()?);
            calls.push(Call { round, index, configuration: said.configuration, mutated: said.mutated });
        }
        calls.sort();
        return Ok(calls);
    }
    ensure!(false, "the audit log {} has no creation of pod {pod}", path.display());
    Ok(Vec::new())
}

/// Ours among the calls.
pub(crate) fn ours(calls: &[Call]) -> impl Iterator<Item = &Call> {
    calls.iter().filter(|call| call.configuration.contains("kickstand"))
}
