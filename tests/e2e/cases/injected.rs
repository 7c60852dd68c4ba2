//! Sidecars that another webhook injects, before or after ours is called.

use anyhow::{Result, ensure};
use kickstand::pod::contract::{KEEP_LOGS, Reason};

use crate::harness::audit::{self, Call};
use crate::harness::injector::Order;
use crate::harness::pods::PodExt as _;
use crate::harness::scene::{STEP_FAILED, Scene};
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

pub(super) async fn a_sidecar_injected_after_ours_is_held_for_released_and_stopped(scene: &Scene<'_>) -> Result<()> {
    let pod = held_released_and_stopped(scene, &[(Order::AfterOurs, "proxy", 8001)]).await?;
    let calls = audit::calls(scene, &pod)?;
    // Called without a sidecar in sight, then once more, since somebody after it has changed the pod.
    let ours: Vec<&Call> = audit::ours(&calls).collect();
    ensure!(
        ours.iter().any(|call| call.round == 0 && !call.mutated)
            && ours.iter().any(|call| call.round > 0 && call.mutated),
        "expected our webhook to change nothing in round 0, and to gate the pod in a later one, seen {calls:?}"
    );
    Ok(())
}

pub(super) async fn a_sidecar_injected_before_ours_is_held_for_released_and_stopped(scene: &Scene<'_>) -> Result<()> {
    let pod = held_released_and_stopped(scene, &[(Order::BeforeOurs, "proxy", 8001)]).await?;
    let calls = audit::calls(scene, &pod)?;
    let first = audit::ours(&calls).next();
    ensure!(
        first.is_some_and(|call| call.round == 0 && call.mutated),
        "expected our webhook to gate the pod in round 0, seen {calls:?}"
    );
    Ok(())
}

pub(super) async fn sidecars_injected_before_and_after_ours_are_all_held_for(scene: &Scene<'_>) -> Result<()> {
    let both = [(Order::BeforeOurs, "first", 8001), (Order::AfterOurs, "second", 8002)];
    held_released_and_stopped(scene, &both).await?;
    Ok(())
}

async fn held_released_and_stopped(scene: &Scene<'_>, sidecars: &[(Order, &str, u16)]) -> Result<String> {
    let mut run = TaskRun::new("injected");
    let mut script = Vec::new();
    for (order, name, port) in sidecars {
        run = run.injected(*order, Sidecar::server(name, *port, 3));
        script.push(ask(*port));
    }
    let run = scene.start(&run.step(&script.join("; "))).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    let names: Vec<&str> = sidecars.iter().map(|(_, name, _)| *name).collect();
    scene.was_held_until_ready(pod.name(), &names)?;
    scene.event(pod.name(), Reason::GateOpened).await?;
    let message = scene.event(pod.name(), Reason::SidecarsStopped).await?;
    for name in names {
        ensure!(message.contains(name), "expected {name} in the Event: {message}");
    }
    Ok(pod.name().to_owned())
}

pub(super) async fn a_red_run_keeps_the_logs_of_its_injected_sidecar(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("red").injected(Order::AfterOurs, Sidecar::deaf_server("proxy", 8001, 1));
    let run = scene.start(&run.step(&format!("{}; exit 7", ask(8001)))).await?;
    run.fails(STEP_FAILED).await?;
    let pod = run.pod_ends_in("Failed").await?;
    logs_are_kept(scene, pod.name()).await
}

pub(super) async fn keep_logs_keeps_the_logs_of_a_green_run(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("green").annotate(KEEP_LOGS, "true");
    let run = run.injected(Order::AfterOurs, Sidecar::server("proxy", 8001, 1)).step(&ask(8001));
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    // It exits 0 when it is told to, so that costs the pod nothing.
    let pod = run.pod_ends_in("Succeeded").await?;
    logs_are_kept(scene, pod.name()).await
}

async fn logs_are_kept(scene: &Scene<'_>, pod: &str) -> Result<()> {
    let log = scene.logs(pod, "proxy").await?;
    ensure!(log.contains("proxy serves"), "expected the sidecar's own log, it is {log:?}");
    Ok(())
}
