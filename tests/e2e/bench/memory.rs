//! What webhook and controllers have in memory, without TaskRun pods and with many.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::ListParams;
use serde_json::json;

use super::table::{Part, markdown};
use super::{say, webhook};
use crate::harness::case::TektonNop;
use crate::harness::install::{self, Component};
use crate::harness::lab::Lab;
use crate::harness::pods::PodExt;
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun};
use crate::harness::{host, tekton};

const MEBIBYTE: u64 = 1024 * 1024;

pub(crate) async fn measure(lab: &Lab, pods: usize) -> Result<Part> {
    tekton::set(lab, &[("await-sidecar-readiness", "false")], TektonNop::Its).await?;
    let before = read(lab).await?;
    say(&format!("{pods} TaskRuns whose pods find no node: they are held, and cost the node nothing"));
    let scene = Scene::new(lab, lab.namespace("bench-memory", Some(true)).await?);
    let made: Result<Vec<()>> = futures::stream::iter(0..pods)
        .map(async |at| {
            let run = TaskRun::new(&format!("run-{at}")).sidecar(Sidecar::never_ready("web")).step("true");
            let mut manifest = run.manifest(&lab.images);
            manifest["spec"]["podTemplate"] = json!({ "nodeSelector": { "e2e.kickstand.dev/node": "there-is-none" } });
            scene.start_manifest(manifest).await?.pod().await?;
            Ok(())
        })
        .buffer_unordered(10)
        .try_collect()
        .await;
    made?;
    let there = lab.pods(&scene.namespace).list(&ListParams::default()).await?.items;
    ensure!(there.iter().all(PodExt::is_gated), "not all of the pods are gated");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = read(lab).await?;
    lab.delete_namespace(&scene.namespace).await?;

    let megabytes =
        |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), |it| format!("{} MiB", it / MEBIBYTE));
    let rows: Vec<Vec<String>> = after
        .iter()
        .map(|(name, bytes)| {
            let first = before.iter().find(|(its, _)| its == name).and_then(|(_, bytes)| *bytes);
            vec![name.clone(), megabytes(first), megabytes(*bytes)]
        })
        .collect();
    let head = ["resident", "before", &format!("with {} TaskRun pods", there.len())];
    Ok(Part { title: "Memory", markdown: markdown(&head, &rows), raw: json!({ "before": before, "after": after }) })
}

/// Each pod's memory: by its metric, or by the node's word where the node is this machine.
async fn read(lab: &Lab) -> Result<Vec<(String, Option<u64>)>> {
    let mut all = Vec::new();
    for component in Component::BOTH {
        for pod in install::pods(lab, component).await? {
            let text = webhook::metrics(lab, pod.name()).await.unwrap_or_default();
            let metric = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
            let mut bytes = metric.and_then(|value| value.trim().parse::<u64>().ok());
            if bytes.is_none() && lab.is_local() {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                bytes = host::processes(&uid, component.word())?.first().and_then(|process| host::resident(*process));
            }
            all.push((pod.name().to_owned(), bytes));
        }
    }
    Ok(all)
}
