//! Beside a Tekton that waits for sidecars and stops them itself.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};

use crate::harness::pods::PodExt as _;
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

const RUNS: u32 = 20;
const AT_ONCE: usize = 5;

pub(super) async fn twenty_runs_of_twenty_succeed(scene: &Scene<'_>) -> Result<()> {
    phases_of_green_runs(scene).await?;
    Ok(())
}

pub(super) async fn twenty_runs_of_twenty_succeed_and_so_do_their_pods(scene: &Scene<'_>) -> Result<()> {
    let phases = phases_of_green_runs(scene).await?;
    ensure!(phases.keys().all(|phase| phase == "Succeeded"), "expected every pod to end Succeeded, seen {phases:?}");
    Ok(())
}

/// What the pod's sidecar was told to run, one after another.
fn images(scene: &Scene<'_>, pod: &str) -> Vec<String> {
    scene.record.look(|seen| {
        let all = seen.history(pod).filter_map(|(_, _, pod)| pod.image_of("sidecar-web").map(str::to_owned));
        let mut images: Vec<String> = all.collect();
        images.dedup();
        images
    })
}

async fn phases_of_green_runs(scene: &Scene<'_>) -> Result<BTreeMap<String, usize>> {
    let ended: Vec<String> = futures::stream::iter(0..RUNS)
        .map(async |at| {
            let run = TaskRun::new(&format!("run-{at}")).sidecar(Sidecar::server("web", 8001, 1)).step(&ask(8001));
            let run = scene.start(&run).await?;
            run.succeeds().await?;
            let pod = run.pod_ends().await?;
            scene.was_held_until_ready(pod.name(), &["sidecar-web"])?;
            let images = images(scene, pod.name());
            // Its own, Kickstand's and Tekton's, or one of the two: not to and fro.
            ensure!(images.len() <= 3, "the sidecar of {} was stopped again and again: {images:?}", pod.name());
            anyhow::Ok(pod.phase().to_owned())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let mut phases = BTreeMap::new();
    for phase in ended {
        *phases.entry(phase).or_insert(0) += 1;
    }
    scene.note(format!("phases of the pods of {RUNS} green runs: {phases:?}"));
    Ok(phases)
}
