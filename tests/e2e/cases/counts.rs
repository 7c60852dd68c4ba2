//! Sidecars that end, crash, or are never ready: what the gate makes of them.

use anyhow::{Context as _, Result, ensure};
use kickstand::pod::contract::{GATE_TIMEOUT, Reason};
use serde_json::json;

use crate::harness::pods::PodExt as _;
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

pub(super) async fn a_sidecar_that_exits_zero_counts_as_ready(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("one-shot").sidecar(Sidecar::script("setup", "sleep 2; exit 0").with(never())).step("true");
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    let (ended, _) = first_ended(scene, pod.name(), "sidecar-setup")?;
    scene.was_held_until(pod.name(), ended)
}

pub(super) async fn a_sidecar_that_exits_one_counts_as_ready_with_a_warning(scene: &Scene<'_>) -> Result<()> {
    let broken = Sidecar::script("broken", "sleep 2; exit 1").with(never());
    let run = TaskRun::new("broken").sidecar(broken).step("sleep 1");
    let run = scene.start(&run).await?;
    let pod = run.pod().await?;
    let message = scene.event(&pod, Reason::GateOpenedUnready).await?;
    ensure!(
        message.contains("sidecar-broken") && message.contains("exit code 1"),
        "expected the sidecar and its exit code in the Event: {message}"
    );
    // Tekton mostly sees the steps' end before the pod's failure, with or without us: no more is promised.
    let verdict = run.verdict().await?;
    scene.note(format!("verdict: {} {}", verdict.status, verdict.reason));
    run.pod_ends().await?;
    let (ended, _) = first_ended(scene, &pod, "sidecar-broken")?;
    scene.was_held_until(&pod, ended)
}

pub(super) async fn of_two_sidecars_one_crashing_and_one_ready_after_twenty_seconds_the_step_waits_for_the_second(
    scene: &Scene<'_>,
) -> Result<()> {
    let run = TaskRun::new("two")
        .sidecar(Sidecar::script("broken", "exit 3").with(never()))
        .sidecar(Sidecar::server("web", 8001, 20))
        .step(&ask(8001));
    let run = scene.start(&run).await?;
    let pod = run.pod().await?;
    let message = scene.event(&pod, Reason::GateOpenedUnready).await?;
    ensure!(message.contains("sidecar-broken"), "expected the crashed sidecar in the Event: {message}");
    run.verdict().await?;
    let ended = run.pod_ends().await?;
    let code = ended.ended("step-one").map(|ended| ended.exit_code);
    ensure!(code == Some(0), "expected the step to reach the second sidecar, its exit code is {code:?}");
    scene.was_held_until_ready(&pod, &["sidecar-web"])
}

pub(super) async fn a_sidecar_that_never_becomes_ready_is_given_up_at_the_gate_timeout(
    scene: &Scene<'_>,
) -> Result<()> {
    let run = TaskRun::new("never").annotate(GATE_TIMEOUT, "15s").sidecar(Sidecar::never_ready("web")).step("true");
    let run = scene.start(&run).await?;
    let pod = run.pod().await?;
    scene.wait_until_held(&pod).await?;
    let message = scene.event(&pod, Reason::GateOpenedUnready).await?;
    ensure!(message.contains("sidecar-web"), "expected the sidecar in the Event: {message}");
    run.succeeds().await?;
    run.pod_ends_in("Succeeded").await?;
    Ok(())
}

pub(super) async fn a_step_held_for_a_minute_is_spoken_of_and_the_sidecar_named(scene: &Scene<'_>) -> Result<()> {
    let run = scene.start(&TaskRun::new("slow").sidecar(Sidecar::never_ready("web")).step("true")).await?;
    let pod = run.pod().await?;
    scene.wait_until_held(&pod).await?;
    let message = scene.event(&pod, Reason::GateHeld).await?;
    ensure!(
        message.contains("sidecar-web") && message.contains("readinessProbe"),
        "expected the sidecar and its probe in the Event: {message}"
    );
    let pod = scene.wait_for_pod(&pod, "it is there", |_| true).await?;
    ensure!(pod.gate_opened().is_none(), "the gate opened while a sidecar was not ready");
    run.cancel().await?;
    run.pod_is_over().await
}

pub(super) async fn a_sidecar_whose_image_cannot_be_pulled_leaves_the_verdict_as_it_is_without_kickstand(
    scene: &Scene<'_>,
) -> Result<()> {
    let missing = Sidecar::idle("missing").with(json!({ "image": "kickstand.invalid/there-is-no:such" }));
    let run = TaskRun::new("missing").timeout("90s").sidecar(missing).step("true");
    let without = scene.beside(Some(false)).await?;
    let with = scene.start(&run).await?;
    let without = without.start(&run).await?.verdict().await?;
    let with = with.verdict().await?;
    scene.note(format!("verdict: {} {}", with.status, with.reason));
    ensure!(
        (&with.status, &with.reason) == (&without.status, &without.reason),
        "without Kickstand {without:?}, with it {with:?}"
    );
    Ok(())
}

fn first_ended(scene: &Scene<'_>, pod: &str, container: &str) -> Result<(usize, jiff::Timestamp)> {
    let ended = scene.record.look(|seen| seen.first(pod, |pod| pod.ended(container).is_some()));
    ended.with_context(|| format!("{container} of pod {pod} was never seen to end"))
}

/// A probe that never succeeds: not ready, however long it runs.
fn never() -> serde_json::Value {
    json!({ "readinessProbe": { "exec": { "command": ["false"] }, "periodSeconds": 1 } })
}
