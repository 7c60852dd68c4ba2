//! Tekton with native sidecars, and a classic one injected: what hangs today.

use anyhow::{Context as _, Result, ensure};

use crate::harness::injector::Order;
use crate::harness::pods::PodExt;
use crate::harness::scene::{STEP_FAILED, Scene};
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

pub(super) async fn a_classic_injected_sidecar_no_longer_keeps_the_pod_alive(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("injected").injected(Order::AfterOurs, Sidecar::server("proxy", 8001, 3)).step(&ask(8001));
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    scene.was_held_until_ready(pod.name(), &["proxy"])
}

pub(super) async fn a_classic_injected_sidecar_beside_a_declared_one_no_longer_keeps_the_run_alive(
    scene: &Scene<'_>,
) -> Result<()> {
    let run = TaskRun::new("both")
        .sidecar(Sidecar::server("web", 8002, 2))
        .injected(Order::AfterOurs, Sidecar::server("proxy", 8001, 3))
        .step(&format!("{}; {}", ask(8001), ask(8002)));
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    scene.was_held_until_ready(pod.name(), &["proxy", "sidecar-web"])
}

pub(super) async fn both_attempts_of_a_retried_run_end_with_a_classic_injected_sidecar(
    scene: &Scene<'_>,
) -> Result<()> {
    let run = TaskRun::new("retried").retries(1).injected(Order::AfterOurs, Sidecar::server("proxy", 8001, 3));
    let run = scene.start(&run.step(&format!("{}; exit 6", ask(8001)))).await?;
    run.fails(STEP_FAILED).await?;
    let pods = scene.record.look(|seen| seen.run(&run.name).map(|run| run.pods().join(" "))).context("no TaskRun")?;
    let pods: Vec<&str> = pods.split(' ').collect();
    ensure!(pods.len() == 2, "the case is void: expected two attempts, seen {pods:?}");
    for pod in pods {
        let ended = scene.wait_for_pod(pod, "it ends", PodExt::is_terminal).await?;
        let code = ended.ended("step-one").map(|ended| ended.exit_code);
        ensure!(code == Some(6), "expected the step to reach the sidecar and to exit 6, it is {code:?}");
        scene.was_held_until_ready(pod, &["proxy"])?;
    }
    Ok(())
}
