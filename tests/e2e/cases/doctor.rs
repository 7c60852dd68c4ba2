//! `helm test`, and the doctor that it runs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kickstand::doctor;
use kickstand::pod::native::Stays;
use kube::api::Api;
use serde_json::Value;

use crate::harness::injector::{Order, STRIP};
use crate::harness::install;
use crate::harness::scene::Scene;

pub(super) async fn helm_test_passes_twice_and_leaves_nothing(scene: &Scene<'_>) -> Result<()> {
    for _ in 0..2 {
        let told = install::helm_test(scene.lab).await?;
        for words in ["the first step waits for the declared sidecar (10 of 10)", "is native", "All is well."] {
            ensure!(told.contains(words), "expected \"{words}\" in the test's log, seen:\n{told}");
        }
        let (client, name) = (&scene.lab.client, "kickstand-helm-test");
        let left = [
            ("namespace", Api::<Namespace>::all(client.clone()).get_opt(name).await?.is_some()),
            ("pod", scene.lab.pods(install::NAMESPACE).get_opt(name).await?.is_some()),
            ("account", left::<ServiceAccount>(scene, name).await?),
            ("role", left::<Role>(scene, name).await?),
            ("binding", left::<RoleBinding>(scene, name).await?),
        ];
        ensure!(left.iter().all(|(_, left)| !left), "expected nothing to be left of the test, seen {left:?}");
    }
    Ok(())
}

async fn left<K>(scene: &Scene<'_>, name: &str) -> Result<bool>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api = Api::<K>::namespaced(scene.lab.client.clone(), install::NAMESPACE);
    Ok(api.get_opt(name).await?.is_some())
}

pub(super) async fn a_webhook_that_takes_restart_policy_away_is_found_before_any_run(scene: &Scene<'_>) -> Result<()> {
    scene.injector()?;
    let (well, findings) = examine(scene, &scene.namespace, &[(STRIP, "after")]).await?;
    ensure!(well, "expected no error, the pods are classic: {findings:#}");
    let native = finding(&findings, "native")?;
    let said = |key: &str| native[key].as_str().unwrap_or_default();
    ensure!(said("level") == "warning", "expected a warning, seen {native}");
    ensure!(said("message").contains(&Stays::Stripped.to_string()), "expected the reason, seen {native}");
    let suspect = Order::AfterOurs.configuration();
    ensure!(said("next").contains(suspect), "expected {suspect} among the suspects, seen {native}");
    Ok(())
}

pub(super) async fn a_namespace_that_is_not_covered_is_told_how_to_be(scene: &Scene<'_>) -> Result<()> {
    let beside = scene.beside(None).await?;
    let (well, findings) = examine(scene, &beside.namespace, &[]).await?;
    ensure!(!well, "expected an error, seen {findings:#}");
    let called = finding(&findings, "called")?;
    let next = called["next"].as_str().unwrap_or_default();
    let label = format!("kubectl label namespace {} kickstand.dev/inject=true", beside.namespace);
    ensure!(next.contains(&label), "expected \"{label}\", seen {called}");
    Ok(())
}

/// Is all well, and what was found.
async fn examine(scene: &Scene<'_>, namespace: &str, annotations: &[(&str, &str)]) -> Result<(bool, Value)> {
    let settings = doctor::Settings {
        namespace: namespace.to_owned(),
        annotations: annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        image: "localhost/never-run:dev".to_owned(),
        times: 10,
        wait: Duration::ZERO,
        home: install::NAMESPACE.to_owned(),
        lease: install::LEASE.to_owned(),
        output: doctor::Output::Json,
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let well = doctor::run(&scene.lab.client, &settings, &mut stdout, &mut stderr).await?;
    Ok((well, serde_json::from_slice(&stdout).context("the doctor's JSON")?))
}

fn finding<'a>(report: &'a Value, check: &str) -> Result<&'a Value> {
    let findings = report["findings"].as_array().into_iter().flatten();
    findings
        .into_iter()
        .find(|it| it["check"] == check)
        .with_context(|| format!("no finding \"{check}\" in {report:#}"))
}
