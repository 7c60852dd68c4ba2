//! The verdict of a run is the one that it has without Kickstand, and its sidecars are stopped.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::harness::injector::Order;
use crate::harness::pods::PodExt as _;
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun};

pub(super) async fn three_steps_have_the_verdict_that_they_have_without_kickstand(scene: &Scene<'_>) -> Result<()> {
    same(scene, TaskRun::new("three").step("echo 1").step("sleep 1; echo 2").step("echo 3"), "True").await
}

pub(super) async fn a_failing_step_has_the_verdict_that_it_has_without_kickstand(scene: &Scene<'_>) -> Result<()> {
    same(scene, TaskRun::new("failing").step("true").step("exit 9").step("echo never"), "False").await
}

pub(super) async fn on_error_continue_has_the_verdict_that_it_has_without_kickstand(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("goes-on").step_with("exit 3", json!({ "onError": "continue" })).step("true");
    same(scene, run, "True").await
}

pub(super) async fn a_step_timeout_has_the_verdict_that_it_has_without_kickstand(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("too-long").step_with("sleep 100", json!({ "timeout": "2s" })).step("echo never");
    same(scene, run, "False").await
}

/// Runs it here, and beside it where Kickstand keeps off.
async fn same(scene: &Scene<'_>, run: TaskRun, expected: &str) -> Result<()> {
    // The twin is not held, so no step may need the sidecar.
    let run = run.injected(Order::AfterOurs, Sidecar::server("proxy", 8001, 2));
    let elsewhere = scene.beside(Some(false)).await?;
    let here = scene.start(&run).await?;
    let there = elsewhere.start(&run).await?;
    let (with, without) = (here.verdict().await?, there.verdict().await?);
    let (with_steps, without_steps) = (here.steps(), there.steps());
    ensure!(
        (&with.status, &with.reason) == (&without.status, &without.reason) && with_steps == without_steps,
        "without Kickstand {without:?} {without_steps:?}, with it {with:?} {with_steps:?}"
    );
    ensure!(with.status == expected, "the case is void: expected Succeeded={expected}, seen {with:?}");
    scene.note(format!("{} {}, steps {}", with.status, with.reason, with_steps.join(", ")));
    let pod = here.pod_ends().await?;
    scene.was_held_until_ready(pod.name(), &["proxy"])?;
    ensure!(pod.ended("proxy").is_some(), "expected the sidecar to be stopped");
    Ok(())
}
