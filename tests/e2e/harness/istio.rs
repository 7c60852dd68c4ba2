//! Istio, where it is installed: a service that only the mesh reaches, and Istio's settings.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use serde_json::json;
use tokio::sync::{Mutex, OnceCell};

use super::lab::Lab;
use super::scene::Skip;

/// The proxy's container.
pub(crate) const PROXY: &str = "istio-proxy";
/// Label of a namespace that Istio injects into.
pub(crate) const INJECTED: (&str, &str) = ("istio-injection", "enabled");
/// Label of a pod, which says whether Istio injects.
pub(crate) const INJECT: &str = "sidecar.istio.io/inject";
/// Annotation of a pod: of which kind its proxy is.
pub(crate) const NATIVE: &str = "sidecar.istio.io/nativeSidecar";
/// The command of the cluster of `tests/cluster`.
const CLUSTER: &str = "tests/cluster/cluster";

/// What is known and made of Istio.
#[derive(Default)]
pub(crate) struct Istio {
    service: OnceCell<String>,
    /// Its settings beyond the cluster's own; `None`: those that a run before this one has left.
    settings: Mutex<Option<Vec<String>>>,
}

/// Before a group that needs it: it is there, and has its own settings.
pub(crate) async fn prepare(lab: &Lab) -> Result<()> {
    let deployments = Api::<Deployment>::namespaced(lab.client.clone(), "istio-system");
    let istiod = deployments.get_opt("istiod").await?.and_then(|it| it.status).and_then(|it| it.available_replicas);
    if istiod.unwrap_or(0) == 0 {
        return Err(Skip(format!("there is no Istio here, or it is not ready: `{CLUSTER} up --with istio`")).into());
    }
    if lab.is_local() { set(lab, &[]).await } else { Ok(()) }
}

/// Gives Istio these settings (values of its chart) on top of the cluster's own, and no others.
pub(crate) async fn set(lab: &Lab, settings: &[&str]) -> Result<()> {
    if !lab.is_local() {
        return Err(Skip("the Istio of a cluster of your own is not set otherwise".to_owned()).into());
    }
    let mut known = lab.istio.settings.lock().await;
    if known.as_deref().is_some_and(|known| known == settings) {
        return Ok(());
    }
    // Interrupted, it is in neither state.
    *known = None;
    let mut command = Command::new(CLUSTER);
    command.arg("istio-set").args(settings);
    let output =
        tokio::task::spawn_blocking(move || command.output()).await?.context("running the cluster's command")?;
    ensure!(
        output.status.success(),
        "{CLUSTER} istio-set {} failed: {}",
        settings.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    *known = Some(settings.iter().map(|it| (*it).to_owned()).collect());
    Ok(())
}

/// Puts Istio's settings back, if they were changed here.
pub(crate) async fn restore(lab: &Lab) -> Result<()> {
    let changed = lab.istio.settings.lock().await.as_ref().is_some_and(|settings| !settings.is_empty());
    if changed { set(lab, &[]).await } else { Ok(()) }
}

/// The address of a service that answers to the mesh alone; it is started when it is first asked for.
pub(crate) async fn service(lab: &Lab) -> Result<&str> {
    lab.istio.service.get_or_try_init(|| start(lab)).await.map(String::as_str)
}

async fn start(lab: &Lab) -> Result<String> {
    let namespace = lab.namespace_with("mesh", &[INJECTED]).await?;
    let resource = ApiResource {
        group: "security.istio.io".into(),
        version: "v1".into(),
        api_version: "security.istio.io/v1".into(),
        kind: "PeerAuthentication".into(),
        plural: "peerauthentications".into(),
    };
    let policy = serde_json::from_value(json!({
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": { "name": "strict" }, "spec": { "mtls": { "mode": "STRICT" } },
    }))?;
    let policies = Api::<DynamicObject>::namespaced_with(lab.client.clone(), &namespace, &resource);
    policies.create(&PostParams::default(), &policy).await.context("a PeerAuthentication")?;

    let serve = "mkdir -p /tmp/www; echo hello >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www";
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "web", "labels": { "app": "web" } },
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [{ "name": "web", "image": lab.images.busybox, "command": ["sh", "-c", serve] }],
        },
    }))?;
    lab.pods(&namespace).create(&PostParams::default(), &pod).await.context("the mesh's service")?;
    let service: Service = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    }))?;
    let services = Api::<Service>::namespaced(lab.client.clone(), &namespace);
    let made = services.create(&PostParams::default(), &service).await.context("the mesh's service")?;
    let address = made.spec.and_then(|spec| spec.cluster_ip).context("a service without an address")?;
    for _ in 0..240 {
        let pod = lab.pods(&namespace).get("web").await?;
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        if conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True") {
            let injected = json!(pod.spec).to_string().contains(PROXY);
            ensure!(injected, "Istio has not injected into namespace {namespace}");
            return Ok(format!("http://{address}/"));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    bail!("the mesh's service in namespace {namespace} does not become ready")
}
