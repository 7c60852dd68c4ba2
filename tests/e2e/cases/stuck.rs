//! Sidecars that are started again and again. (A container's own restart policy: Kubernetes 1.35.)

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kickstand::pod::contract::{GATE, Reason};
use serde_json::json;

use crate::harness::injector::Order;
use crate::harness::pods::PodExt as _;
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

pub(super) async fn a_restartable_sidecar_that_crash_loops_counts_as_ready_with_a_warning(
    scene: &Scene<'_>,
) -> Result<()> {
    scene.lab.needs_kubernetes(35).await?;
    let crashing = Sidecar::script("crashing", "sleep 1; exit 4").with(json!({
        "restartPolicy": "OnFailure",
        "readinessProbe": { "exec": { "command": ["false"] }, "periodSeconds": 1 },
    }));
    let run = scene.start(&TaskRun::new("loop").injected(Order::AfterOurs, crashing).step("true")).await?;
    let pod = run.pod().await?;
    let message = scene.event(&pod, Reason::GateOpenedUnready).await?;
    ensure!(
        message.contains("crashing") && message.contains("exit code 4"),
        "expected the sidecar and its exit code in the Event: {message}"
    );
    run.succeeds().await?;
    // Nothing restarts nop, which exits 0.
    run.pod_ends_in("Succeeded").await?;
    Ok(())
}

pub(super) async fn a_sidecar_that_restarts_whatever_it_exits_with_is_ended_by_the_deadline(
    scene: &Scene<'_>,
) -> Result<()> {
    scene.lab.needs_kubernetes(35).await?;
    let immortal = Sidecar::server("immortal", 8001, 0).with(json!({ "restartPolicy": "Always" }));
    let run = scene.start(&TaskRun::new("immortal").injected(Order::AfterOurs, immortal).step(&ask(8001))).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Failed").await?;
    scene.event(pod.name(), Reason::PodEnded).await?;
    ended_by_deadline(&pod)?;
    run.succeeds().await
}

/// The escalation: two minutes after the verdict.
pub(super) async fn a_kept_pod_whose_step_can_never_start_is_ended_after_two_minutes(scene: &Scene<'_>) -> Result<()> {
    // Tekton gives up at once on an image that cannot be pulled, but not on one that must not be.
    let image = json!({ "image": "kickstand.invalid/there-is-no:such", "imagePullPolicy": "Never" });
    // Not held: a shut gate would end the pod at once.
    let run = TaskRun::new("stuck").annotate(GATE, "false").sidecar(Sidecar::idle("web")).step_with("true", image);
    let run = scene.start(&run).await?;
    let pod = run.pod().await?;
    scene.wait_for_pod(&pod, "its sidecar runs", |pod| pod.is_running("sidecar-web")).await?;
    run.cancel().await?;
    run.fails(&["TaskRunCancelled"]).await?;
    scene.event(&pod, Reason::PodEnded).await?;
    let ended = run.pod_ends_in("Failed").await?;
    ended_by_deadline(&ended)
}

fn ended_by_deadline(pod: &Pod) -> Result<()> {
    let reason = pod.status.as_ref().and_then(|status| status.reason.clone()).unwrap_or_default();
    ensure!(reason == "DeadlineExceeded", "expected the pod to be ended by its deadline, it is {reason:?}");
    Ok(())
}
