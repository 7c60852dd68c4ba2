//! Kickstand's installation: by its chart, as a user would; seen to answer; taken down and put right again.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, LogParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::case::Strategy;
use super::lab::Lab;
use super::pods::{PodExt as _, like_a_task_runs};
use super::tekton;

pub(crate) const NAMESPACE: &str = "kickstand-system";
const RELEASE: &str = "kickstand";
pub(crate) const LEASE: &str = "kickstand-controller";

/// The two Deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    Webhook,
    Controller,
}

impl Component {
    pub(crate) const BOTH: [Self; 2] = [Self::Webhook, Self::Controller];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Controller => "controller",
        }
    }

    fn labels(self) -> String {
        format!("app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={}", self.word())
    }
}

/// Installs the chart, or upgrades what is there, and waits until a pod shows it.
pub(crate) async fn install(lab: &Lab, strategy: Strategy) -> Result<()> {
    if lab.options.without_kickstand {
        return Ok(());
    }
    if !lab.options.no_install {
        eprintln!("installing {} with {}", lab.options.chart.display(), lab.images.kickstand);
        let mut set = image_values("image", &lab.images.kickstand);
        set.push(format!("native.enabled={}", strategy == Strategy::Default));
        set.extend(image_values("nopImage", &lab.images.nop));
        if let Some(image) = tekton::own_nop_image(lab).await? {
            set.push(format!("tektonNopImages={{{image}}}"));
        }
        let chart = lab.options.chart.to_string_lossy().into_owned();
        let mut args = [
            "upgrade",
            "--install",
            RELEASE,
            &chart,
            "-n",
            NAMESPACE,
            "--create-namespace",
            "--wait",
            "--timeout",
            "3m",
        ]
        .map(str::to_owned)
        .to_vec();
        for value in set {
            args.extend(["--set".to_owned(), value]);
        }
        helm(lab, &args).await?;
    }
    answers(lab, strategy).await
}

/// On somebody's cluster: one that is there is theirs.
pub(crate) async fn refuse_somebody_elses(lab: &Lab) -> Result<()> {
    let options = &lab.options;
    let asked = options.no_install || options.without_kickstand || options.force;
    ensure!(
        lab.is_local() || asked || deployment(lab, Component::Webhook).await.is_err(),
        "Kickstand is installed there already\n  Test that one with --no-install, or replace it, and lose it in the end, with --force"
    );
    Ok(())
}

pub(crate) async fn uninstall(lab: &Lab) -> Result<()> {
    helm(lab, &["uninstall", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "3m"].map(str::to_owned)).await?;
    Ok(())
}

/// The chart's own test; returns what it said, its log included.
pub(crate) async fn helm_test(lab: &Lab) -> Result<String> {
    helm(lab, &["test", RELEASE, "-n", NAMESPACE, "--logs"].map(str::to_owned)).await
}

/// Whatever a case has done to it: installed, scaled as the chart says, answering.
pub(crate) async fn repair(lab: &Lab, strategy: Strategy) -> Result<()> {
    if lab.options.without_kickstand {
        return Ok(());
    }
    if deployment(lab, Component::Webhook).await.is_err() {
        return install(lab, strategy).await;
    }
    for component in Component::BOTH {
        scale(lab, component, 2).await?;
    }
    for component in Component::BOTH {
        available(lab, component, 2).await?;
    }
    answers(lab, strategy).await
}

pub(crate) async fn scale(lab: &Lab, component: Component, replicas: i32) -> Result<()> {
    let name = deployment(lab, component).await?.name_any();
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    deployments(lab).patch_scale(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until so many replicas are available, and no pod is left beyond them.
pub(crate) async fn available(lab: &Lab, component: Component, replicas: i32) -> Result<()> {
    for _ in 0..240 {
        let status = deployment(lab, component).await?.status.unwrap_or_default();
        let left = pods(lab, component).await?.len();
        if status.available_replicas.unwrap_or(0) == replicas && i32::try_from(left) == Ok(replicas) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    bail!("the {} has not {replicas} available replicas", component.word())
}

pub(crate) async fn pods(lab: &Lab, component: Component) -> Result<Vec<Pod>> {
    Ok(lab.pods(NAMESPACE).list(&ListParams::default().labels(&component.labels())).await?.items)
}

/// The pod of the controller that leads.
pub(crate) async fn leader(lab: &Lab) -> Result<String> {
    let lease = Api::<Lease>::namespaced(lab.client.clone(), NAMESPACE).get(LEASE).await.context("the Lease")?;
    lease.spec.and_then(|spec| spec.holder_identity).filter(|it| !it.is_empty()).context("the Lease has no holder")
}

/// The last lines that webhook and controllers logged.
pub(crate) async fn logs(lab: &Lab, lines: i64) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for component in Component::BOTH {
        for pod in pods(lab, component).await.unwrap_or_default() {
            let params = LogParams { tail_lines: Some(lines), ..LogParams::default() };
            let log = lab.pods(NAMESPACE).logs(pod.name(), &params).await;
            all.push((pod.name().to_owned(), log.unwrap_or_else(|error| format!("no log: {error}"))));
        }
    }
    all
}

/// Waits until a pod like a TaskRun's comes back from a dry run as this strategy makes it.
async fn answers(lab: &Lab, strategy: Strategy) -> Result<()> {
    /// So often in a row: the webhook has replicas, and those of before may still answer.
    const IN_A_ROW: u32 = 8;
    let at = kickstand::clock::now().as_millisecond() % 1_000_000;
    let namespace = lab.namespace(&format!("answers-{at}"), Some(true)).await?;
    let (mut in_a_row, mut seen) = (0, None);
    for _ in 0..240 {
        let shape = shape(lab, &namespace).await?;
        in_a_row = if shape == Some(strategy) { in_a_row + 1 } else { 0 };
        seen = shape;
        if in_a_row == IN_A_ROW {
            break;
        }
        tokio::time::sleep(Duration::from_millis(if in_a_row > 0 { 50 } else { 500 })).await;
    }
    lab.delete_namespace(&namespace).await?;
    if in_a_row < IN_A_ROW {
        for (pod, log) in logs(lab, 30).await {
            eprintln!("--- log of {pod}\n{log}");
        }
    }
    ensure!(
        in_a_row == IN_A_ROW,
        "Kickstand is installed, but its answers are not {strategy:?} (the last one: {seen:?}): is a controller's Lease renewed, is the webhook called, can the cluster run native sidecars?"
    );
    Ok(())
}

/// What becomes of a declared server now; `None`: it is not waited for at all.
pub(crate) async fn shape(lab: &Lab, namespace: &str) -> Result<Option<Strategy>> {
    let pod = dry_run(lab, namespace).await?;
    Ok(pod.is_gated().then(|| if pod.is_native("sidecar-web") { Strategy::Default } else { Strategy::Classic }))
}

/// A pod like a TaskRun's, with a declared server, as it would be created.
pub(crate) async fn dry_run(lab: &Lab, namespace: &str) -> Result<Pod> {
    let pod = serde_json::from_value(like_a_task_runs("dry-run", &BTreeMap::new(), 0))?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    lab.pods(namespace).create(&params, &pod).await.context("a dry run of a pod's creation")
}

fn deployments(lab: &Lab) -> Api<Deployment> {
    Api::namespaced(lab.client.clone(), NAMESPACE)
}

async fn deployment(lab: &Lab, component: Component) -> Result<Deployment> {
    let list = deployments(lab).list(&ListParams::default().labels(&component.labels())).await?;
    list.items.into_iter().next().with_context(|| format!("no Deployment of the {} in {NAMESPACE}", component.word()))
}

/// The chart's three values of an image.
fn image_values(key: &str, image: &str) -> Vec<String> {
    let (name, digest) = image.split_once('@').map_or((image, ""), |(name, digest)| (name, digest));
    // A colon before the last slash is a port.
    let at = name.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) =
        name[at..].find(':').map_or((name, "latest"), |colon| (&name[..at + colon], &name[at + colon + 1..]));
    let (registry, repository) = name.split_once('/').unwrap_or(("docker.io", name));
    vec![
        format!("{key}.registry={registry}"),
        format!("{key}.repository={repository}"),
        format!("{key}.tag={tag}"),
        format!("{key}.digest={digest}"),
    ]
}

async fn helm(lab: &Lab, args: &[String]) -> Result<String> {
    let mut command = Command::new(&lab.options.helm);
    command.args(args);
    if let Some(kubeconfig) = &lab.options.kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    let output = tokio::task::spawn_blocking(move || command.output())
        .await?
        .with_context(|| format!("cannot run {}: give the program by --helm or HELM", lab.options.helm.display()))?;
    ensure!(
        output.status.success(),
        "helm {} failed: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
