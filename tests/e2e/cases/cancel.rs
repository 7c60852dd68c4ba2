//! Cancelled and timed-out runs, held or running, their pods deleted or kept.

use anyhow::{Result, ensure};
use kickstand::pod::contract::GATE_TIMEOUT;

use crate::harness::pods::PodExt as _;
use crate::harness::scene::{Run, Scene};
use crate::harness::taskrun::{Sidecar, TaskRun};

const MARK: &str = "the step has started";

pub(super) async fn cancelled_while_held_the_step_never_starts(scene: &Scene<'_>) -> Result<()> {
    while_held(scene, How::Cancelled, false).await
}

pub(super) async fn timed_out_while_held_the_step_never_starts(scene: &Scene<'_>) -> Result<()> {
    while_held(scene, How::TimedOut, false).await
}

pub(super) async fn cancelled_while_held_a_kept_pod_ends_and_the_step_never_starts(scene: &Scene<'_>) -> Result<()> {
    while_held(scene, How::Cancelled, true).await
}

pub(super) async fn timed_out_while_held_a_kept_pod_ends_and_the_step_never_starts(scene: &Scene<'_>) -> Result<()> {
    while_held(scene, How::TimedOut, true).await
}

pub(super) async fn cancelled_while_running_the_pod_goes(scene: &Scene<'_>) -> Result<()> {
    while_running(scene, How::Cancelled, false).await
}

pub(super) async fn timed_out_while_running_the_pod_goes(scene: &Scene<'_>) -> Result<()> {
    while_running(scene, How::TimedOut, false).await
}

pub(super) async fn cancelled_while_running_a_kept_pod_ends(scene: &Scene<'_>) -> Result<()> {
    while_running(scene, How::Cancelled, true).await
}

pub(super) async fn timed_out_while_running_a_kept_pod_ends(scene: &Scene<'_>) -> Result<()> {
    while_running(scene, How::TimedOut, true).await
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Cancelled,
    TimedOut,
}

impl How {
    /// The TaskRun's timeout: one that comes, or one that is out of the way.
    fn timeout(self) -> &'static str {
        if self == Self::TimedOut { "30s" } else { "10m" }
    }

    async fn end(self, run: &Run<'_>) -> Result<()> {
        if self == Self::Cancelled {
            run.cancel().await?;
        }
        run.fails(&[if self == Self::Cancelled { "TaskRunCancelled" } else { "TaskRunTimeout" }]).await
    }
}

async fn while_held(scene: &Scene<'_>, how: How, kept: bool) -> Result<()> {
    // Else the gate opens at a third of the pod's deadline, which is before the run's timeout.
    let run = TaskRun::new("held").timeout(how.timeout()).annotate(GATE_TIMEOUT, "0");
    let run = run.sidecar(Sidecar::never_ready("web"));
    let run = scene.start(&run.step(&format!("echo {MARK}; sleep 30"))).await?;
    let pod = run.pod().await?;
    scene.wait_until_held(&pod).await?;
    // Also a pod that is deleted must not have run it in its last seconds.
    let log = scene.follow_log(&pod, "step-one");
    how.end(&run).await?;
    run.pod_is_over().await?;
    let log = log.text().await?;
    ensure!(!log.contains(MARK), "the first step of a run that was over has started: its log is {log:?}");
    kept_or_gone(scene, &pod, kept)?;
    if let Some(pod) = scene.record.look(|seen| seen.pod(&pod)) {
        ensure!(pod.gate_opened().is_none(), "the gate of a run that was over has opened");
    }
    Ok(())
}

async fn while_running(scene: &Scene<'_>, how: How, kept: bool) -> Result<()> {
    let run = TaskRun::new("running").timeout(how.timeout()).annotate(GATE_TIMEOUT, "0");
    let run = run.sidecar(Sidecar::server("web", 8001, 0));
    let run = scene.start(&run.step(&format!("echo {MARK}; sleep 600"))).await?;
    let pod = run.pod().await?;
    scene.wait_until_open(&pod).await?;
    scene.wait_for_pod(&pod, "its step's container runs", |pod| pod.is_running("step-one")).await?;
    let log = scene.follow_log(&pod, "step-one");
    // The entrypoint looks once a second.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    how.end(&run).await?;
    run.pod_is_over().await?;
    let log = log.text().await?;
    ensure!(log.contains(MARK), "the case is void: the step had not started, its log is {log:?}");
    kept_or_gone(scene, &pod, kept)
}

/// The case must have seen what it is about.
fn kept_or_gone(scene: &Scene<'_>, pod: &str, kept: bool) -> Result<()> {
    let gone = scene
        .record
        .look(|seen| seen.is_gone(pod) || seen.pod(pod).is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()));
    ensure!(gone != kept, "the case is void: expected the pod to be {}", if kept { "kept" } else { "deleted" });
    Ok(())
}
