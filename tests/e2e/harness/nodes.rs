//! Nodes that are not there: Node objects, for what depends on who is in the cluster.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use super::lab::LABEL;

/// Adds one that says it runs this version of Kubernetes; nothing is scheduled there.
pub(crate) async fn join(client: &Client, name: &str, version: &str) -> Result<()> {
    let node = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { LABEL: "", "kubernetes.io/os": "linux" } },
        "spec": { "unschedulable": true, "taints": [{ "key": LABEL, "effect": "NoSchedule" }] },
        "status": { "nodeInfo": {
            "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
            "kubeProxyVersion": version, "kubeletVersion": version, "machineID": "", "operatingSystem": "linux",
            "osImage": "", "systemUUID": "",
        } },
    }))?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.context("creating a Node")?;
    Ok(())
}

/// Takes away all that [`join`] has added, also those of a run that was killed.
pub(crate) async fn leave(client: &Client) -> Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    for node in nodes.list(&ListParams::default().labels(LABEL)).await? {
        nodes.delete(&node.name_any(), &DeleteParams::default()).await?;
    }
    Ok(())
}
