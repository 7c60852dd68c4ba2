//! Kickstand, or a part of it, goes away. These run one by one; the installation is put right after each.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use kickstand::pod::contract::READY;

use crate::harness::injector::Order;
use crate::harness::install::{self, Component};
use crate::harness::pods::PodExt as _;
use crate::harness::scene::{PATIENCE, Run, Scene, Skip};
use crate::harness::taskrun::{Sidecar, TaskRun};
use crate::harness::{host, lab::Lab};

pub(super) async fn without_a_webhook_runs_pass_and_their_sidecars_are_stopped(scene: &Scene<'_>) -> Result<()> {
    may_disturb(scene)?;
    install::scale(scene.lab, Component::Webhook, 0).await?;
    install::available(scene.lab, Component::Webhook, 0).await?;
    let run = TaskRun::new("unheld").injected(Order::AfterOurs, Sidecar::server("proxy", 8001, 1)).step("sleep 1");
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    ensure!(!pod.is_gated(), "the case is void: the pod is gated, so a webhook was there");
    Ok(())
}

pub(super) async fn without_a_controller_new_pods_are_let_through_and_a_held_one_waits_for_its_return(
    scene: &Scene<'_>,
) -> Result<()> {
    may_disturb(scene)?;
    let held = scene.start(&switched(scene, "held")?).await?;
    let pod = held.pod().await?;
    scene.wait_until_held(&pod).await?;

    install::scale(scene.lab, Component::Controller, 0).await?;
    for controller in install::pods(scene.lab, Component::Controller).await? {
        let at_once = kube::api::DeleteParams::default().grace_period(0);
        scene.lab.pods(install::NAMESPACE).delete(controller.name(), &at_once).await?;
    }
    install::available(scene.lab, Component::Controller, 0).await?;
    let gone = Instant::now();
    while install::dry_run(scene.lab, &scene.namespace).await?.is_gated() {
        ensure!(gone.elapsed() < PATIENCE, "without a controller, pods are gated for ever");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    scene.note(format!("pods are let through {:.1} s after the last controller's end", gone.elapsed().as_secs_f64()));
    let new = TaskRun::new("new").injected(Order::AfterOurs, Sidecar::never_ready("proxy")).step("true");
    let new = scene.start(&new).await?;
    new.succeeds().await?;
    let untouched = scene.wait_for_pod(&new.pod().await?, "it is there", |_| true).await?;
    ensure!(!untouched.is_gated(), "a pod was gated although no controller would open the gate");

    scene.injector()?.switch_on(&scene.namespace);
    scene.wait_for_pod(&pod, "its sidecar is ready", |pod| pod.is_ready("proxy")).await?;
    let still = scene.lab.pods(&scene.namespace).get(&pod).await?;
    ensure!(still.annotation(READY).is_none(), "the case is void: a gate opened without a controller");
    install::scale(scene.lab, Component::Controller, 2).await?;
    held.succeeds().await?;
    scene.was_held_until_ready(&pod, &["proxy"])?;
    held.pod_ends_in("Succeeded").await?;
    // Nobody held this one, but somebody must end it.
    new.pod_ends_in("Succeeded").await?;
    Ok(())
}

pub(super) async fn a_killed_leader_leaves_ten_held_pods_to_the_standby(scene: &Scene<'_>) -> Result<()> {
    may_disturb(scene)?;
    let runs = (0..10).map(async |at| {
        let run = scene.start(&switched(scene, &format!("held-{at}"))?).await?;
        let pod = run.pod().await?;
        scene.wait_until_held(&pod).await?;
        anyhow::Ok((run, pod))
    });
    let runs: Vec<(Run<'_>, String)> = try_join_all(runs).await?;
    let leader = install::leader(scene.lab).await?;
    let killed = kickstand::clock::now();
    let how = kill(scene.lab, &leader).await?;
    scene.injector()?.switch_on(&scene.namespace);
    let mut last = killed;
    for (run, pod) in &runs {
        scene.wait_until_open(pod).await?;
        let opened = scene.record.look(|seen| seen.first(pod, |pod| pod.gate_opened().is_some()));
        last = last.max(opened.context("open, but never seen so")?.1);
        run.succeeds().await?;
        scene.was_held_until_ready(pod, &["proxy"])?;
        run.pod_ends_in("Succeeded").await?;
    }
    let took = last.duration_since(killed).as_secs_f64();
    let next = install::leader(scene.lab).await?;
    ensure!(next != leader, "the case is void: {leader} leads again");
    scene.note(format!("{leader} {how}; all ten released {took:.1} s later by {next}"));
    Ok(())
}

pub(super) async fn an_uninstall_releases_a_held_pod(scene: &Scene<'_>) -> Result<()> {
    may_disturb(scene)?;
    let run = TaskRun::new("held").injected(Order::AfterOurs, Sidecar::never_ready("proxy")).step("true");
    let run = scene.start(&run).await?;
    let pod = run.pod().await?;
    scene.wait_until_held(&pod).await?;
    install::uninstall(scene.lab).await?;
    let opened = scene.lab.pods(&scene.namespace).get(&pod).await?;
    ensure!(opened.gate_opened().is_some(), "the uninstall has ended, and the gate is still shut");
    run.succeeds().await
}

/// Before anything is taken down: not somebody's own Kickstand, and not in vain.
fn may_disturb(scene: &Scene<'_>) -> Result<()> {
    let options = &scene.lab.options;
    if options.no_install && !options.force {
        return Err(Skip("this Kickstand was not installed here, and is not taken down: add --force".to_owned()).into());
    }
    scene.injector().map(|_| ())
}

/// A run whose sidecar becomes ready when the case says so.
fn switched(scene: &Scene<'_>, name: &str) -> Result<TaskRun> {
    let probe = scene.injector()?.probe(&scene.namespace);
    Ok(TaskRun::new(name).injected(Order::AfterOurs, Sidecar::idle("proxy").with(probe)).step("true"))
}

/// Without a chance to give up its Lease, where that can be done; and for good: its container, started again, would go on
/// under the same Lease a second later.
async fn kill(lab: &Lab, pod: &str) -> Result<&'static str> {
    let pods = lab.pods(install::NAMESPACE);
    if lab.is_local() {
        let uid = pods.get(pod).await?.metadata.uid.context("a pod without a UID")?;
        if host::kill(&uid, "controller")? == 0 {
            bail!("no process of pod {pod} was found on this machine");
        }
    }
    pods.delete(pod, &kube::api::DeleteParams::default().grace_period(0)).await?;
    Ok(if lab.is_local() { "was killed" } else { "was deleted without grace" })
}
