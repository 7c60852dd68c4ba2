//! The gate, with declared sidecars.

use anyhow::{Result, ensure};
use kickstand::pod::contract::{GATE, READY};

use crate::harness::pods::PodExt as _;
use crate::harness::scene::{STEP_FAILED, Scene};
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

pub(super) async fn a_declared_sidecar_ready_after_three_seconds_holds_the_step_and_the_pod_succeeds(
    scene: &Scene<'_>,
) -> Result<()> {
    let run = TaskRun::new("held").sidecar(Sidecar::deaf_server("web", 8001, 3)).step(&ask(8001));
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    scene.was_held_until_ready(pod.name(), &["sidecar-web"])
}

/// That its sidecar's log survives is seen where Tekton does not stop sidecars: its own stop loses it.
pub(super) async fn a_red_run_with_a_declared_sidecar_ends_and_stays_red(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("red").sidecar(Sidecar::server("web", 8001, 3)).step(&format!("{}; exit 7", ask(8001)));
    let run = scene.start(&run).await?;
    run.fails(STEP_FAILED).await?;
    let pod = run.pod_ends_in("Failed").await?;
    scene.was_held_until_ready(pod.name(), &["sidecar-web"])?;
    let log = scene.logs(pod.name(), "sidecar-web").await.unwrap_or_default();
    scene.note(format!("the sidecar's log after Tekton and Kickstand have stopped it: {:?}", log.trim()));
    let code = pod.ended("step-one").map(|ended| ended.exit_code);
    ensure!(code == Some(7), "expected the step's own exit code 7, it is {code:?}");
    Ok(())
}

pub(super) async fn a_preset_ready_annotation_opens_no_gate(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("preset").annotate(READY, "2020-01-01T00:00:00Z").sidecar(Sidecar::server("web", 8001, 5));
    let run = scene.start(&run.step(&ask(8001))).await?;
    let pod = run.pod().await?;
    scene.wait_until_held(&pod).await?;
    run.succeeds().await?;
    run.pod_ends().await?;
    scene.was_held_until_ready(&pod, &["sidecar-web"])
}

pub(super) async fn a_namespace_that_opts_out_while_a_pod_is_held_lets_it_go(scene: &Scene<'_>) -> Result<()> {
    let run = scene.start(&TaskRun::new("held").sidecar(Sidecar::never_ready("web")).step("true")).await?;
    let pod = run.pod().await?;
    scene.wait_until_held(&pod).await?;
    scene.lab.label_namespace(&scene.namespace, false).await?;
    run.succeeds().await
}

pub(super) async fn a_gate_annotated_off_holds_nothing(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("open").annotate(GATE, "false").sidecar(Sidecar::never_ready("web")).step("true");
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends().await?;
    ensure!(!pod.is_gated(), "expected no gate, there is one");
    Ok(())
}
