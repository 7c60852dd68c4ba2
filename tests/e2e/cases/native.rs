//! Declared sidecars that the kubelet starts and ends: the native strategy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kickstand::pod::contract::{FINISH, GATE_TIMEOUT, IGNORE, Reason, STRATEGY};
use serde_json::{Value, json};

use crate::harness::audit;
use crate::harness::case::Strategy;
use crate::harness::injector::STRIP;
use crate::harness::install;
use crate::harness::nodes;
use crate::harness::pods::PodExt;
use crate::harness::scene::{PATIENCE, Run, STEP_FAILED, Scene};
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

const WEB: &str = "sidecar-web";

pub(super) async fn a_declared_server_is_native_holds_the_step_and_is_ended_by_the_kubelet(
    scene: &Scene<'_>,
) -> Result<()> {
    let run = TaskRun::new("green").sidecar(Sidecar::server("web", 8001, 3)).step(&ask(8001));
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    all_native(&pod, &[WEB])?;
    scene.was_held_until_ready(pod.name(), &[WEB])?;
    scene.event(pod.name(), Reason::GateOpened).await?;
    scene.was_not_stopped(pod.name())?;
    its_log_is_there(scene, &pod).await
}

pub(super) async fn a_red_run_with_a_native_server_stays_red_and_keeps_its_log(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("red").sidecar(Sidecar::server("web", 8001, 3)).step(&format!("{}; exit 7", ask(8001)));
    let run = scene.start(&run).await?;
    run.fails(STEP_FAILED).await?;
    let pod = run.pod_ends_in("Failed").await?;
    all_native(&pod, &[WEB])?;
    scene.was_held_until_ready(pod.name(), &[WEB])?;
    scene.was_not_stopped(pod.name())?;
    let code = pod.ended("step-one").map(|ended| ended.exit_code);
    ensure!(code == Some(7), "expected the step's own exit code 7, it is {code:?}");
    its_log_is_there(scene, &pod).await
}

/// Init containers start one after another: the first must not hold up the second.
pub(super) async fn of_two_native_servers_the_first_may_need_the_second(scene: &Scene<'_>) -> Result<()> {
    let first = Sidecar::server("first", 8001, 0).with(readiness(json!({ "tcpSocket": { "port": 8002 } })));
    let run = TaskRun::new("two").sidecar(first).sidecar(Sidecar::server("second", 8002, 3));
    let run = scene.start(&run.step(&format!("{}; {}", ask(8001), ask(8002)))).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    let both = ["sidecar-first", "sidecar-second"];
    all_native(&pod, &both)?;
    scene.was_held_until_ready(pod.name(), &both)
}

pub(super) async fn a_one_shot_beside_a_server_leaves_both_classic_and_stopped(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("one-shot")
        .sidecar(Sidecar::script("setup", "sleep 2; exit 0"))
        .sidecar(Sidecar::server("web", 8001, 3))
        .step(&ask(8001));
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends_in("Succeeded").await?;
    all_classic(&pod, &["sidecar-setup", WEB])?;
    scene.was_held_until_ready(pod.name(), &[WEB])
}

/// Without Kickstand, it passes too; that it takes longer for the gate is the price of a broken sidecar.
pub(super) async fn a_native_server_that_exits_at_once_fails_no_run(scene: &Scene<'_>) -> Result<()> {
    let runs = ["exit 1", "exit 0"].map(async |script| {
        let name = script.replace(' ', "-");
        let broken = Sidecar::script("web", script).with(readiness(json!({ "tcpSocket": { "port": 8001 } })));
        let run = TaskRun::new(&name).annotate(GATE_TIMEOUT, "30s").sidecar(broken).step("true");
        let run = scene.start(&run).await?;
        let pod = run.pod().await?;
        let message = scene.event(&pod, Reason::GateOpenedUnready).await?;
        ensure!(message.contains(WEB), "expected the sidecar in the Event: {message}");
        run.succeeds().await?;
        let ended = run.pod_ends_in("Succeeded").await?;
        scene.note(format!("{script}: {message}"));
        all_native(&ended, &[WEB])
    });
    try_join_all(runs).await?;
    Ok(())
}

/// Without Kickstand, it passes: a classic sidecar that cannot be started has ended, and nobody waits for it.
pub(super) async fn a_native_server_that_cannot_be_started_is_replaced_by_a_classic_one_five_times_of_five(
    scene: &Scene<'_>,
) -> Result<()> {
    let runs = (0..5).map(async |at| {
        let broken = Sidecar::server("web", 8001, 0).with(json!({ "command": ["/there-is-no-such-command"] }));
        let run = scene.start(&TaskRun::new(&format!("broken-{at}")).sidecar(broken).step("sleep 1")).await?;
        let pod = run.pod().await?;
        scene.event(&pod, Reason::PodReplaced).await?;
        run.succeeds().await?;
        let classic = scene.wait_for_pod(&pod, "it ends, the second of its name", |pod| {
            pod.is_terminal() && !pod.classic().is_empty()
        });
        let classic = classic.await?;
        scene.note(format!("{pod} ended {}", classic.phase()));
        all_classic(&classic, &[WEB])
    });
    try_join_all(runs).await?;
    Ok(())
}

pub(super) async fn a_native_server_that_is_never_ready_is_given_up_at_the_gate_timeout(
    scene: &Scene<'_>,
) -> Result<()> {
    let run = TaskRun::new("never").annotate(GATE_TIMEOUT, "10s").sidecar(Sidecar::never_ready("web")).step("true");
    let run = scene.start(&run).await?;
    let pod = run.pod().await?;
    scene.wait_until_held(&pod).await?;
    let message = scene.event(&pod, Reason::GateOpenedUnready).await?;
    ensure!(message.contains(WEB), "expected the sidecar in the Event: {message}");
    run.succeeds().await?;
    all_native(&*run.pod_ends_in("Succeeded").await?, &[WEB])
}

pub(super) async fn a_startup_probe_or_a_post_start_hook_leaves_a_server_classic(scene: &Scene<'_>) -> Result<()> {
    let startup =
        json!({ "startupProbe": { "tcpSocket": { "port": 8001 }, "periodSeconds": 1, "failureThreshold": 60 } });
    let hook = json!({ "lifecycle": { "postStart": { "exec": { "command": ["true"] } } } });
    let runs = [("startup-probe", startup), ("post-start", hook)].map(async |(name, more)| {
        let run = TaskRun::new(name).sidecar(Sidecar::server("web", 8001, 2).with(more)).step(&ask(8001));
        let pod = green(scene, &run).await?;
        all_classic(&pod, &[WEB])?;
        scene.was_held_until_ready(pod.name(), &[WEB])
    });
    try_join_all(runs).await?;
    Ok(())
}

pub(super) async fn however_a_server_says_that_it_is_ready_it_is_native(scene: &Scene<'_>) -> Result<()> {
    let server = || Sidecar::server("web", 8001, 2);
    let file = json!({ "exec": { "command": ["test", "-f", "/tmp/www-8001/index.html"] } });
    let mut named = readiness(json!({ "httpGet": { "path": "/", "port": "web" } }));
    named["ports"] = json!([{ "name": "web", "containerPort": 8001 }]);
    let mut twice = readiness(json!({ "httpGet": { "path": "/", "port": 8001 } }));
    twice["readinessProbe"]["successThreshold"] = json!(2);
    let runs = [("exec", readiness(file)), ("named-port", named), ("twice", twice)].map(async |(name, probe)| {
        let run = TaskRun::new(name).sidecar(server().with(probe)).step("sleep 1");
        let pod = green(scene, &run).await?;
        all_native(&pod, &[WEB])?;
        scene.was_held_until_ready(pod.name(), &[WEB])
    });
    try_join_all(runs).await?;
    Ok(())
}

pub(super) async fn twelve_servers_are_all_native_and_all_held_for(scene: &Scene<'_>) -> Result<()> {
    let mut run = TaskRun::new("twelve");
    let mut script = Vec::new();
    for port in 8001..=8012 {
        run = run.sidecar(Sidecar::server(&format!("web-{port}"), port, 1));
        script.push(ask(port));
    }
    let pod = green(scene, &run.step(&script.join("; "))).await?;
    let names: Vec<String> = (8001..=8012).map(|port| format!("sidecar-web-{port}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    all_native(&pod, &names)?;
    scene.was_held_until_ready(pod.name(), &names)
}

pub(super) async fn what_asks_for_the_classic_strategy_gets_it(scene: &Scene<'_>) -> Result<()> {
    let asks = [("strategy", STRATEGY, "classic"), ("finish", FINISH, "web=5s"), ("ignore", IGNORE, "web")];
    let runs = asks.map(async |(name, key, value)| {
        let run = TaskRun::new(name).annotate(key, value).sidecar(Sidecar::server("web", 8001, 1)).step("sleep 2");
        let run = scene.start(&run).await?;
        run.succeeds().await?;
        all_classic(&*run.pod_ends().await?, &[WEB])
    });
    try_join_all(runs).await?;
    Ok(())
}

pub(super) async fn cancelled_while_a_native_server_holds_it_the_step_never_starts(scene: &Scene<'_>) -> Result<()> {
    super::cancel::cancelled_while_held_the_step_never_starts(scene).await?;
    the_held_one_was_native(scene)
}

pub(super) async fn timed_out_while_a_native_server_holds_it_the_step_never_starts(scene: &Scene<'_>) -> Result<()> {
    super::cancel::timed_out_while_held_the_step_never_starts(scene).await?;
    the_held_one_was_native(scene)
}

pub(super) async fn on_error_continue_and_a_step_timeout_have_the_verdict_that_they_have_without_kickstand(
    scene: &Scene<'_>,
) -> Result<()> {
    let goes_on = TaskRun::new("goes-on").step_with("exit 3", json!({ "onError": "continue" })).step("true");
    let too_long = TaskRun::new("too-long").step_with("sleep 100", json!({ "timeout": "2s" })).step("echo never");
    let elsewhere = scene.beside(Some(false)).await?;
    for (run, expected) in [(goes_on, "True"), (too_long, "False")] {
        let run = run.sidecar(Sidecar::server("web", 8001, 2));
        let (here, there) = (scene.start(&run).await?, elsewhere.start(&run).await?);
        let (with, without) = (here.verdict().await?, there.verdict().await?);
        ensure!(
            (&with.status, &with.reason, here.steps()) == (&without.status, &without.reason, there.steps()),
            "without Kickstand {without:?} {:?}, with it {with:?} {:?}",
            there.steps(),
            here.steps()
        );
        ensure!(with.status == expected, "the case is void: expected Succeeded={expected}, seen {with:?}");
        all_native(&*here.pod_ends().await?, &[WEB])?;
    }
    Ok(())
}

pub(super) async fn a_result_is_written_and_read_beside_a_native_server(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("result").result("answer").sidecar(Sidecar::server("web", 8001, 1));
    let run = run
        .step(&format!("answer=$({}); printf %s \"$answer\" >$(results.answer.path)", ask(8001)))
        .step("grep -q hello $(results.answer.path)");
    let pod = green(scene, &run).await?;
    all_native(&pod, &[WEB])?;
    let answer = scene.record.look(|seen| seen.run("result").and_then(|run| run.result("answer").map(str::to_owned)));
    ensure!(answer.as_deref() == Some("hello"), "expected the result that the step has written, it is {answer:?}");
    Ok(())
}

pub(super) async fn both_attempts_of_a_retried_run_are_native_and_end(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("twice").retries(1).sidecar(Sidecar::server("web", 8001, 1));
    let run = scene.start(&run.step(&format!("{}; exit 7", ask(8001)))).await?;
    run.fails(STEP_FAILED).await?;
    let state = scene.record.look(|seen| seen.run(&run.name)).context("no TaskRun")?;
    let pods = state.pods();
    ensure!(pods.len() == 2, "the case is void: expected two attempts, seen {pods:?}");
    for pod in pods {
        let ended = scene.wait_for_pod(pod, "it ends", PodExt::is_terminal).await?;
        all_native(&ended, &[WEB])?;
        scene.was_not_stopped(pod)?;
    }
    Ok(())
}

/// Such webhooks decode a pod into types that have no such field, and answer with what they know. The API server refuses a
/// pod that stays so: none does.
pub(super) async fn where_another_webhook_takes_restart_policy_away_no_pod_is_refused_ten_times_of_ten(
    scene: &Scene<'_>,
) -> Result<()> {
    scene.injector()?;
    let stripped = (0..10).map(async |at| {
        let place = ["after", "around"][at % 2];
        let run =
            TaskRun::new(&format!("{place}-{at}")).annotate(STRIP, place).sidecar(Sidecar::server("web", 8001, 3));
        let pod = green(scene, &run.step(&ask(8001))).await?;
        all_classic(&pod, &[WEB])?;
        scene.was_held_until_ready(pod.name(), &[WEB])?;
        let calls = audit::calls(scene, pod.name())?;
        let again = audit::ours(&calls).any(|call| call.round > 0 && call.mutated);
        ensure!(
            again,
            "the case is void: expected our webhook to be called again, and to change the pod, seen {calls:?}"
        );
        Ok(())
    });
    try_join_all(stripped).await?;
    // Whoever comes before ours finds nothing to take away.
    let run = TaskRun::new("before").annotate(STRIP, "before").sidecar(Sidecar::server("web", 8001, 1));
    all_native(&*green(scene, &run.step(&ask(8001))).await?, &[WEB])
}

pub(super) async fn beside_tektons_defaults_ten_of_ten_runs_and_pods_succeed(scene: &Scene<'_>) -> Result<()> {
    futures::stream::iter(0..10)
        .map(async |at| {
            let run = TaskRun::new(&format!("run-{at}")).sidecar(Sidecar::server("web", 8001, 1)).step(&ask(8001));
            let pod = green(scene, &run).await?;
            all_native(&pod, &[WEB])?;
            ensure!(!pod.waits_for_tekton(), "expected no wait of Tekton's own in {}, there is one", pod.name());
            scene.was_held_until_ready(pod.name(), &[WEB])?;
            scene.was_not_stopped(pod.name())
        })
        .buffer_unordered(5)
        .try_collect()
        .await
}

pub(super) async fn with_a_classic_sidecar_tektons_own_wait_stays(scene: &Scene<'_>) -> Result<()> {
    let run = TaskRun::new("waits").sidecar(Sidecar::idle("idle")).step("true");
    let run = scene.start(&run).await?;
    run.succeeds().await?;
    let pod = run.pod_ends().await?;
    all_classic(&pod, &["sidecar-idle"])?;
    ensure!(pod.waits_for_tekton(), "expected Tekton's own wait in the first step of {}, it is gone", pod.name());
    Ok(())
}

pub(super) async fn while_a_node_is_too_old_pods_are_classic(scene: &Scene<'_>) -> Result<()> {
    if !scene.lab.is_local() {
        return Err(crate::harness::scene::Skip("no Nodes are made up on a cluster of your own".to_owned()).into());
    }
    nodes::join(&scene.lab.client, "e2e-old", "v1.30.0").await?;
    // Taken away also when this fails.
    let seen = with_an_old_node(scene).await;
    nodes::leave(&scene.lab.client).await?;
    seen?;
    until(scene, Strategy::Default).await?;
    let run = TaskRun::new("after").sidecar(Sidecar::server("web", 8001, 1)).step(&ask(8001));
    all_native(&*green(scene, &run).await?, &[WEB])
}

async fn with_an_old_node(scene: &Scene<'_>) -> Result<()> {
    until(scene, Strategy::Classic).await?;
    let run = TaskRun::new("meanwhile").sidecar(Sidecar::server("web", 8001, 1)).step(&ask(8001));
    let pod = green(scene, &run).await?;
    all_classic(&pod, &[WEB])?;
    scene.was_held_until_ready(pod.name(), &[WEB])
}

/// Waits until all replicas of the webhook have taken in what the cluster can do.
async fn until(scene: &Scene<'_>, strategy: Strategy) -> Result<()> {
    let start = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 10 {
        let shape = install::shape(scene.lab, &scene.namespace).await?;
        in_a_row = if shape == Some(strategy) { in_a_row + 1 } else { 0 };
        if start.elapsed() > PATIENCE {
            bail!("expected pods of {strategy:?} by now, seen {shape:?}");
        }
        tokio::time::sleep(Duration::from_millis(if in_a_row > 0 { 50 } else { 250 })).await;
    }
    scene.note(format!("{strategy:?} {:.1} s after the Node's change", start.elapsed().as_secs_f64()));
    Ok(())
}

/// A run that succeeds, and its pod, which does, too.
async fn green(scene: &Scene<'_>, run: &TaskRun) -> Result<Arc<Pod>> {
    let run: Run<'_> = scene.start(run).await?;
    run.succeeds().await?;
    run.pod_ends_in("Succeeded").await
}

pub(super) fn all_native(pod: &Pod, names: &[&str]) -> Result<()> {
    let classic = pod.classic();
    ensure!(classic.is_empty(), "expected no classic sidecar in pod {}, there are {classic:?}", pod.name());
    for name in names {
        ensure!(pod.is_native(name), "expected {name} of pod {} to be native, it is not", pod.name());
    }
    Ok(())
}

pub(super) fn all_classic(pod: &Pod, names: &[&str]) -> Result<()> {
    let classic = pod.classic();
    ensure!(classic == names, "expected the classic sidecars {names:?} in pod {}, seen {classic:?}", pod.name());
    Ok(())
}

fn the_held_one_was_native(scene: &Scene<'_>) -> Result<()> {
    let pod = scene.record.look(|seen| {
        let run = seen.run("held")?;
        seen.pod(run.pods().first()?)
    });
    all_native(&*pod.context("the pod of the held run was never seen")?, &[WEB])
}

async fn its_log_is_there(scene: &Scene<'_>, pod: &Pod) -> Result<()> {
    let log = scene.logs(pod.name(), WEB).await?;
    ensure!(log.contains("web serves"), "expected the sidecar's own log, it is {log:?}");
    Ok(())
}

/// A readinessProbe that asks this once a second.
fn readiness(probe: Value) -> Value {
    let mut readiness = json!({ "periodSeconds": 1, "failureThreshold": 1 });
    if let (Value::Object(readiness), Value::Object(probe)) = (&mut readiness, probe) {
        readiness.extend(probe);
    }
    json!({ "readinessProbe": readiness })
}
