//! Who is stopped, in which order, and how the pod ends.

use anyhow::{Context as _, Result, ensure};
use kickstand::pod::contract::{FINISH, IGNORE};
use serde_json::json;

use crate::harness::injector::Order;
use crate::harness::pods::PodExt as _;
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

pub(super) async fn two_helpers_end_before_the_network_proxy(scene: &Scene<'_>) -> Result<()> {
    const PROXY: &str = "istio-proxy";
    let run = TaskRun::new("order")
        .injected(Order::BeforeOurs, Sidecar::server(PROXY, 8001, 1))
        .injected(Order::AfterOurs, Sidecar::server("cache", 8002, 1))
        .injected(Order::AfterOurs, Sidecar::idle("agent"))
        .step(&ask(8001));
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    scene.record.look(|seen| {
        let image = pod.image_of(PROXY).context("no proxy")?;
        let (told, _) = seen.first(pod.name(), |pod| pod.image_of(PROXY) == Some(image)).context("not told to stop")?;
        for helper in ["cache", "agent"] {
            let ended = seen.first(pod.name(), |pod| pod.ended(helper).is_some());
            let (ended, _) = ended.with_context(|| format!("{helper} was never seen to end"))?;
            ensure!(ended <= told, "the proxy was told to stop before {helper} had ended");
        }
        Ok(())
    })
}

pub(super) async fn a_deaf_sidecar_is_killed_and_the_pod_succeeds(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("deaf").injected(Order::AfterOurs, Sidecar::deaf_server("proxy", 8001, 1)).step(&ask(8001));
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    let image = pod.image_of("proxy").unwrap_or_default();
    ensure!(image == scene.lab.images.nop, "expected the nop image in its place, it is {image}");
    Ok(())
}

pub(super) async fn an_ignored_sidecar_and_one_that_may_finish_are_left_alone(scene: &Scene<'_>) -> Result<()> {
    // Both end by themselves, in the end: the one after the step, the other never told to.
    let uploader = Sidecar::script("uploader", "trap 'exit 5' TERM; sleep 12 & wait; echo uploaded");
    let ignored = Sidecar::script("ignored", "trap 'exit 5' TERM; sleep 16 & wait; echo done")
        .with(json!({ "readinessProbe": { "exec": { "command": ["false"] }, "periodSeconds": 1 } }));
    let run = TaskRun::new("left")
        .annotate(IGNORE, "ignored")
        .annotate(FINISH, "uploader=2m")
        .injected(Order::AfterOurs, uploader)
        .injected(Order::AfterOurs, ignored)
        .step("true");
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    for (name, word) in [("uploader", "uploaded"), ("ignored", "done")] {
        let log = scene.logs(pod.name(), name).await?;
        let code = pod.ended(name).map(|ended| ended.exit_code);
        ensure!(log.contains(word) && code == Some(0), "expected {name} to end by itself: {code:?}, {log:?}");
    }
    Ok(())
}
