//! What the webhook does, and does not, when a pod is created.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kickstand::pod::contract::{GATE_TIMEOUT, INJECT, INJECTED, Reason};
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::harness::audit;
use crate::harness::install::dry_run;
use crate::harness::pods::{PodExt as _, like_a_task_runs};
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

pub(super) async fn without_a_sidecar_the_webhook_changes_nothing(scene: &Scene<'_>) -> Result<()> {
    let run = scene.start(&TaskRun::new("plain").step("true")).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    ensure!(!pod.is_gated(), "expected no gate, there is one");
    ensure!(pod.annotation(INJECTED).is_none(), "expected no annotation of ours: {:?}", pod.annotation(INJECTED));
    let calls = audit::calls(scene, pod.name())?;
    ensure!(audit::ours(&calls).count() > 0, "expected our webhook to be called, seen {calls:?}");
    ensure!(audit::ours(&calls).all(|call| !call.mutated), "expected mutated: false, seen {calls:?}");
    Ok(())
}

pub(super) async fn a_dry_run_gets_the_same_answer_and_leaves_no_trace(scene: &Scene<'_>) -> Result<()> {
    let first = dry_run(scene.lab, &scene.namespace).await?;
    let second = dry_run(scene.lab, &scene.namespace).await?;
    ensure!(first.is_gated(), "expected a gate in the dry run, there is none");
    // The same pod in earnest: its images do not exist, it only has to be there.
    let pod: Pod = serde_json::from_value(like_a_task_runs("real", &std::collections::BTreeMap::new(), 0))?;
    let pods = scene.lab.pods(&scene.namespace);
    let real = pods.create(&PostParams::default(), &pod).await?;
    let gate = |pod: &Pod| (pod.containers()[0].args.clone(), pod.annotation(INJECTED).map(str::to_owned));
    for other in [&second, &real] {
        ensure!(gate(&first) == gate(other), "once {:?}, then {:?}", gate(&first), gate(other));
    }
    pods.delete("real", &kube::api::DeleteParams::default().grace_period(0)).await?;
    let traces = scene.record.look(|seen| seen.events("dry-run").count());
    ensure!(traces == 0, "expected no Event on a pod that never was, seen {traces}");
    let left = pods.list(&ListParams::default()).await?.items;
    ensure!(left.iter().all(|pod| pod.name() != "dry-run"), "expected no pod of a dry run");
    Ok(())
}

pub(super) async fn a_pod_of_nobody_and_an_opted_out_pod_are_left_alone(scene: &Scene<'_>) -> Result<()> {
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let pods = scene.lab.pods(&scene.namespace);
    let mut nobodys = like_a_task_runs("nobodys", &std::collections::BTreeMap::new(), 0);
    nobodys["metadata"]["ownerReferences"] = json!([]);
    let mut opted_out = like_a_task_runs("opted-out", &std::collections::BTreeMap::new(), 0);
    opted_out["metadata"]["labels"][INJECT] = json!("false");
    for pod in [nobodys, opted_out] {
        let pod = pods.create(&params, &serde_json::from_value(pod)?).await?;
        ensure!(!pod.is_gated(), "expected no gate in pod {}, there is one", pod.name());
    }
    Ok(())
}

pub(super) async fn a_malformed_annotation_is_never_fatal_and_is_spoken_of(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("slip").annotate(GATE_TIMEOUT, "soon").sidecar(Sidecar::server("web", 8001, 1));
    let run = scene.start(&run.step(&ask(8001))).await?;
    run.succeeds().await?;
    let pod = run.pod_ends().await?;
    scene.was_held_until_ready(pod.name(), &["sidecar-web"])?;
    let message = scene.event(pod.name(), Reason::BadAnnotation).await?;
    ensure!(message.contains("gate-timeout") && message.contains("soon"), "expected both named: {message}");
    Ok(())
}
