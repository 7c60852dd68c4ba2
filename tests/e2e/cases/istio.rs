//! Beside the real Istio. Every step begins with a call that only gets through if its proxy is ready.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kickstand::pod::contract::{ENDED_IMAGE, INJECT, INJECTED, Reason};

use super::native::all_native;
use crate::harness::istio::{self, PROXY};
use crate::harness::pods::PodExt as _;
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

/// The proxy waits for itself: of Istio, for a pod with a classic one.
const HOLD: (&str, &str) = ("proxy.istio.io/config", "{\"holdApplicationUntilProxyStarts\": true}");
const RUNS: u32 = 20;
/// The machine may be small, and proxies are not.
const AT_ONCE: usize = 4;

pub(super) async fn a_native_proxy_is_ready_for_the_first_call_twenty_times_of_twenty(scene: &Scene<'_>) -> Result<()> {
    let calls = many(async |at| {
        let pod = green(scene, calling(scene, &format!("run-{at}")).await?).await?;
        all_native(&pod, &[PROXY])?;
        scene.was_not_stopped(pod.name())
    });
    calls.await?;
    Ok(())
}

pub(super) async fn a_declared_server_beside_a_native_proxy_is_native_too(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("beside").sidecar(Sidecar::server("web", 8001, 2));
    let run = run.step(&format!("{}; {}", scene.call_through_the_mesh().await?, ask(8001)));
    let pod = green(scene, run).await?;
    all_native(&pod, &[PROXY, "sidecar-web"])?;
    scene.was_held_until_ready(pod.name(), &["sidecar-web"])?;
    scene.was_not_stopped(pod.name())
}

/// Whose first call fails, since the mesh refuses it: so those of the other cases do go through the proxy.
pub(super) async fn a_pod_that_opts_out_of_istio_is_left_alone(scene: &Scene<'_>) -> Result<()> {
    let call = scene.call_through_the_mesh().await?;
    let run = TaskRun::new("out").label(istio::INJECT, "false").step(&format!("if ( {call} ); then exit 1; fi"));
    let pod = green(scene, run).await?;
    ensure!(pod.classic().is_empty() && !pod.is_native(PROXY), "the case is void: there is a proxy");
    ensure!(!pod.is_gated(), "expected no gate, there is one");
    ensure!(pod.annotation(INJECTED).is_none(), "expected no annotation of ours: {:?}", pod.annotation(INJECTED));
    Ok(())
}

pub(super) async fn a_pod_that_opts_in_alone_is_held(scene: &Scene<'_>) -> Result<()> {
    let alone = scene.beside(None).await?;
    let run = classic(calling(scene, "alone").await?).label(istio::INJECT, "true");
    let pod = green(&alone, run).await?;
    ensure!(pod.classic() == [PROXY], "the case is void: expected a classic proxy, seen {:?}", pod.classic());
    alone.was_held_until_ready(pod.name(), &[PROXY])
}

/// How many do not is a matter of luck: noted, not asserted.
pub(super) async fn without_kickstand_first_calls_fail_with_a_classic_proxy(scene: &Scene<'_>) -> Result<()> {
    let failed = many(async |at| {
        let run = classic(calling(scene, &format!("run-{at}")).await?).label(INJECT, "false");
        let run = scene.start(&run).await?;
        let failed = run.verdict().await?.status != "True";
        run.pod_is_over().await?;
        Ok(u32::from(failed))
    });
    let failed: u32 = failed.await?.into_iter().sum();
    scene.note(format!("without Kickstand, the first call failed in {failed} of {RUNS} runs"));
    Ok(())
}

pub(super) async fn a_classic_proxy_is_held_for_and_ended_twenty_times_of_twenty(scene: &Scene<'_>) -> Result<()> {
    let calls = many(async |at| {
        let pod = green(scene, classic(calling(scene, &format!("run-{at}")).await?)).await?;
        was_held_and_ended(scene, &pod).await
    });
    calls.await?;
    Ok(())
}

pub(super) async fn a_classic_proxy_that_holds_the_application_is_held_for_and_ended(scene: &Scene<'_>) -> Result<()> {
    let run = classic(calling(scene, "holding").await?).annotate(HOLD.0, HOLD.1);
    let pod = green(scene, run).await?;
    let first = pod.containers().first().map(|it| it.name.as_str());
    ensure!(first == Some(PROXY), "the case is void: expected the proxy first, it is {first:?}");
    was_held_and_ended(scene, &pod).await
}

pub(super) async fn with_a_native_proxy_tektons_own_wait_goes(scene: &Scene<'_>) -> Result<()> {
    let pod = green(scene, calling(scene, "native").await?).await?;
    all_native(&pod, &[PROXY])?;
    ensure!(!pod.waits_for_tekton(), "expected no wait of Tekton's own in {}, there is one", pod.name());
    Ok(())
}

pub(super) async fn with_a_classic_proxy_tektons_own_wait_stays(scene: &Scene<'_>) -> Result<()> {
    let run = scene.start(&classic(calling(scene, "classic").await?)).await?;
    run.succeeds().await?;
    let pod = run.pod_ends().await?;
    ensure!(pod.classic() == [PROXY], "the case is void: expected a classic proxy, seen {:?}", pod.classic());
    ensure!(pod.waits_for_tekton(), "expected Tekton's own wait in the first step of {}, it is gone", pod.name());
    Ok(())
}

pub(super) async fn an_istio_of_classic_proxies_is_asked_for_native_ones_twenty_times_of_twenty(
    scene: &Scene<'_>,
) -> Result<()> {
    istio::set(scene.lab, &["env.ENABLE_NATIVE_SIDECARS=false"]).await?;
    let calls = many(async |at| {
        let pod = green(scene, calling(scene, &format!("run-{at}")).await?).await?;
        all_native(&pod, &[PROXY])?;
        scene.was_not_stopped(pod.name())
    });
    calls.await?;
    // Nobody asked for this one.
    let run = scene.start(&calling(scene, "unasked").await?.label(INJECT, "false")).await?;
    let pod = run.pod_ends().await?;
    ensure!(pod.classic() == [PROXY], "the case is void: unasked, Istio adds {:?}", pod.classic());
    Ok(())
}

pub(super) async fn an_istio_that_is_called_again_adds_no_container_twice(scene: &Scene<'_>) -> Result<()> {
    istio::set(scene.lab, &["sidecarInjectorWebhook.reinvocationPolicy=IfNeeded"]).await?;
    let call = scene.call_through_the_mesh().await?;
    let server = || Sidecar::server("web", 8001, 1);
    let steps = format!("{call}; {}", ask(8001));
    let runs = [
        calling(scene, "native").await?,
        classic(calling(scene, "classic").await?),
        TaskRun::new("native-beside").sidecar(server()).step(&steps),
        classic(TaskRun::new("classic-beside").sidecar(server()).step(&steps)),
    ];
    try_join_all(runs.map(async |run| {
        let pod = green(scene, run).await?;
        let spec = pod.spec.as_ref().context("a pod without a spec")?;
        let all = spec.init_containers.iter().flatten().chain(&spec.containers);
        let mut names = BTreeSet::new();
        for container in all {
            ensure!(names.insert(&container.name), "{} is twice in pod {}", container.name, pod.name());
        }
        ensure!(names.iter().any(|name| *name == PROXY), "the case is void: pod {} has no proxy", pod.name());
        Ok(())
    }))
    .await?;
    Ok(())
}

/// A run whose only step calls through the mesh.
async fn calling(scene: &Scene<'_>, name: &str) -> Result<TaskRun> {
    Ok(TaskRun::new(name).step(&scene.call_through_the_mesh().await?))
}

/// With a classic proxy, by Istio's own annotation.
fn classic(run: TaskRun) -> TaskRun {
    run.annotate(istio::NATIVE, "false")
}

async fn green(scene: &Scene<'_>, run: TaskRun) -> Result<Arc<Pod>> {
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    run.pod_ends_in("Succeeded").await
}

async fn was_held_and_ended(scene: &Scene<'_>, pod: &Pod) -> Result<()> {
    ensure!(pod.classic() == [PROXY], "the case is void: expected a classic proxy, seen {:?}", pod.classic());
    scene.was_held_until_ready(pod.name(), &[PROXY])?;
    scene.event(pod.name(), Reason::SidecarsStopped).await?;
    let image = pod.image_of(PROXY);
    ensure!(image == Some(ENDED_IMAGE), "expected the proxy to be ended by {ENDED_IMAGE}, its image is {image:?}");
    let code = pod.ended(PROXY).map(|ended| ended.exit_code);
    ensure!(code == Some(0), "expected the proxy to exit 0, its exit code is {code:?}");
    Ok(())
}

async fn many<T, F: Future<Output = Result<T>>>(one: impl Fn(u32) -> F) -> Result<Vec<T>> {
    futures::stream::iter(0..RUNS).map(one).buffer_unordered(AT_ONCE).try_collect().await
}
