//! At the edge of what a namespace allows: quotas, limits, and pod security.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{LimitRange, Namespace, ResourceQuota};
use kickstand::pod::contract::STRATEGY;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::native::{all_classic, all_native};
use crate::harness::pods::PodExt as _;
use crate::harness::scene::Scene;
use crate::harness::taskrun::{Sidecar, TaskRun, ask};

const WEB: &str = "sidecar-web";

/// What the step and the sidecar ask for together, and not a bit more.
const REQUESTS: &str = "80m";
const LIMITS: &str = "700m";

pub(super) async fn where_quota_and_limits_just_fit_the_classic_pod_they_fit_the_native_one(
    scene: &Scene<'_>,
) -> Result<()> {
    let range: LimitRange = serde_json::from_value(json!({
        "metadata": { "name": "edge" },
        "spec": { "limits": [
            { "type": "Container", "default": { "cpu": "200m" }, "defaultRequest": { "cpu": "10m" } },
            { "type": "Pod", "max": { "cpu": LIMITS } },
        ] },
    }))?;
    let quota: ResourceQuota = serde_json::from_value(json!({
        "metadata": { "name": "edge" },
        "spec": { "hard": { "requests.cpu": REQUESTS, "limits.cpu": LIMITS } },
    }))?;
    let (client, namespace) = (&scene.lab.client, &scene.namespace);
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &range).await?;
    let quotas = Api::<ResourceQuota>::namespaced(client.clone(), namespace);
    quotas.create(&PostParams::default(), &quota).await?;

    for strategy in ["classic", "native"] {
        let sidecar = Sidecar::server("web", 8001, 1).with(cpu("30m", "200m"));
        let run = TaskRun::new(strategy).annotate(STRATEGY, strategy).sidecar(sidecar);
        let run = scene.start(&run.step_with(&ask(8001), cpu("50m", "500m"))).await?;
        let pod = run.pod().await?;
        let used = quotas.get("edge").await?.status.and_then(|status| status.used).unwrap_or_default();
        let used = ["requests.cpu", "limits.cpu"].map(|what| used.get(what).map_or("none", |it| &it.0));
        scene.note(format!("{strategy}: requests.cpu {}, limits.cpu {}", used[0], used[1]));
        ensure!(
            used == [REQUESTS, LIMITS],
            "expected pod {pod} to use the quota to its edge, {REQUESTS} and {LIMITS}; used is {used:?}"
        );
        run.succeeds().await?;
        let pod = run.pod_ends_in("Succeeded").await?;
        if strategy == "native" {
            all_native(&pod, &[WEB])?;
        } else {
            all_classic(&pod, &[WEB])?;
        }
        scene.was_held_until_ready(pod.name(), &[WEB])?;
    }
    Ok(())
}

pub(super) async fn under_restricted_pod_security_both_strategies_hold_and_end(scene: &Scene<'_>) -> Result<()> {
    let enforce = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let namespaces = Api::<Namespace>::all(scene.lab.client.clone());
    namespaces.patch(&scene.namespace, &PatchParams::default(), &Patch::Merge(enforce)).await?;
    let restricted = json!({ "securityContext": {
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "runAsNonRoot": true,
    } });
    for strategy in ["classic", "native"] {
        let sidecar = Sidecar::server("web", 8001, 2).with(restricted.clone());
        let run = TaskRun::new(strategy).annotate(STRATEGY, strategy).sidecar(sidecar);
        let mut manifest = run.step_with(&ask(8001), restricted.clone()).manifest(&scene.lab.images);
        manifest["spec"]["podTemplate"] = json!({ "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": { "type": "RuntimeDefault" },
        } });
        let run = scene.start_manifest(manifest).await?;
        run.succeeds().await?;
        let pod = run.pod_ends_in("Succeeded").await?;
        let shape = pod.spec.as_ref().context("a pod without a spec")?;
        ensure!(shape.security_context.is_some(), "the case is void: the pod has no securityContext");
        if strategy == "native" {
            all_native(&pod, &[WEB])?;
        } else {
            all_classic(&pod, &[WEB])?;
        }
        scene.was_held_until_ready(pod.name(), &[WEB])?;
    }
    Ok(())
}

fn cpu(request: &str, limit: &str) -> Value {
    json!({ "computeResources": { "requests": { "cpu": request }, "limits": { "cpu": limit } } })
}
