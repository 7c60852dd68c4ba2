use std::time::Duration;

use k8s_openapi::ByteString;
use kickstand::certificates::{self, Settings};
use kickstand::metrics::certificates::CertificateMetrics;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::FakeApi;

const SYSTEM: &str = "kickstand-system";

fn settings() -> Settings {
    Settings {
        namespace: SYSTEM.to_owned(),
        service: "kickstand-webhook".to_owned(),
        webhook_configurations: ["zz-kickstand", "0-kickstand"].map(str::to_owned).into(),
        ca_secret: "kickstand-ca".to_owned(),
        tls_secret: "kickstand-webhook-tls".to_owned(),
    }
}

/// As the chart creates it: two empty Secrets, and two configurations of two webhooks each that trust nobody.
fn installed() -> FakeApi {
    let api = FakeApi::new();
    for name in ["kickstand-ca", "kickstand-webhook-tls"] {
        api.put(json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name, "namespace": SYSTEM } }));
    }
    let webhook = |name: &str| {
        json!({
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": { "service": { "name": "kickstand-webhook", "namespace": SYSTEM } },
        })
    };
    for name in ["zz-kickstand", "0-kickstand"] {
        api.put(json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": name },
            "webhooks": [webhook("one.kickstand.dev"), webhook("other.kickstand.dev")],
        }));
    }
    api
}

fn start(api: &FakeApi, leading: bool) -> (watch::Sender<bool>, CancellationToken) {
    let (leader, leads) = watch::channel(leading);
    let shutdown = CancellationToken::new();
    let metrics = CertificateMetrics::register(&mut Registry::default());
    tokio::spawn(certificates::run(api.client(), settings(), metrics, leads, shutdown.clone()));
    (leader, shutdown)
}

fn bundles(api: &FakeApi) -> Vec<Value> {
    let there =
        ["zz-kickstand", "0-kickstand"].iter().filter_map(|name| api.get("mutatingwebhookconfigurations", name));
    there
        .flat_map(|configuration| configuration["webhooks"].as_array().unwrap().clone())
        .map(|webhook| webhook["clientConfig"]["caBundle"].clone())
        .collect()
}

fn secret(api: &FakeApi, name: &str, key: &str) -> String {
    let data = api.get("secrets", name).unwrap()["data"][key].clone();
    let bytes: ByteString = serde_json::from_value(data).unwrap_or_default();
    String::from_utf8(bytes.0).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_empty_installation_gets_everything_and_nothing_changes_after() {
    let api = installed();
    let (_leader, shutdown) = start(&api, true);
    api.until("the bundle is there", |api| bundles(api).iter().all(Value::is_string)).await;
    api.until("the certificate is there", |api| !secret(api, "kickstand-webhook-tls", "tls.key").is_empty()).await;
    let ca = secret(&api, "kickstand-ca", "ca.crt");
    assert_eq!(bundles(&api).len(), 4);
    for bundle in bundles(&api) {
        let published: ByteString = serde_json::from_value(bundle).unwrap();
        assert_eq!(published.0, ca.as_bytes());
    }
    assert_eq!(secret(&api, "kickstand-webhook-tls", "ca.crt"), ca);
    assert!(secret(&api, "kickstand-webhook-tls", "ca.key").is_empty(), "the webhook cannot sign");
    let written = api.writes().len();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(api.writes().len(), written);
    shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_bundle_that_somebody_blanks_comes_back() {
    let api = installed();
    let (_leader, shutdown) = start(&api, true);
    api.until("the bundle is there", |api| bundles(api).iter().all(Value::is_string)).await;
    let before = bundles(&api);
    api.change("mutatingwebhookconfigurations", "zz-kickstand", |configuration| {
        configuration["webhooks"][0]["clientConfig"].as_object_mut().unwrap().remove("caBundle");
    });
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(bundles(&api), before);
    shutdown.cancel();
}

/// Without native sidecars the chart makes no early configuration; an uninstall deletes both.
#[rstest::rstest]
#[case::the_early_one(&["0-kickstand"])]
#[case::both(&["0-kickstand", "zz-kickstand"])]
#[tokio::test(start_paused = true)]
async fn a_configuration_that_is_not_there_is_done_without(#[case] absent: &[&str]) {
    let api = installed();
    let kept: Vec<Value> = absent.iter().map(|name| api.get("mutatingwebhookconfigurations", name).unwrap()).collect();
    for name in absent {
        api.remove("mutatingwebhookconfigurations", name);
    }
    let (_leader, shutdown) = start(&api, true);
    api.until("the certificate is there", |api| !secret(api, "kickstand-webhook-tls", "tls.key").is_empty()).await;
    assert_eq!(bundles(&api).len(), 4 - 2 * absent.len());
    assert!(bundles(&api).iter().all(Value::is_string));

    let (written, read) = (api.writes().len(), api.calls().len());
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(api.writes().len(), written);
    let looks = (api.calls().len() - read) / 4;
    assert!((18..=22).contains(&looks), "{looks} looks in 10 minutes: no more than one in 30 s");

    for configuration in kept {
        api.put(configuration);
    }
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(bundles(&api).len(), 4);
    assert!(bundles(&api).iter().all(Value::is_string), "one that comes later is filled in");
    shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_lead_touches_nothing() {
    let api = installed();
    let (leader, shutdown) = start(&api, false);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(api.calls().is_empty(), "{:?}", api.calls());
    leader.send_replace(true);
    api.until("the bundle is there", |api| bundles(api).iter().all(Value::is_string)).await;
    shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn of_two_that_write_at_once_the_first_is_kept() {
    let api = installed();
    api.meanwhile("PATCH", "/secrets/kickstand-ca", |api| {
        api.change("secrets", "kickstand-ca", |secret| secret["metadata"]["labels"] = json!({ "a": "b" }));
    });
    let (_leader, shutdown) = start(&api, true);
    api.until("the bundle is there", |api| bundles(api).iter().all(Value::is_string)).await;
    let tried = api.writes().iter().filter(|call| call.path.ends_with("/secrets/kickstand-ca")).count();
    assert_eq!(tried, 2, "the first was of an older version");
    assert_eq!(api.get("secrets", "kickstand-ca").unwrap()["metadata"]["labels"]["a"], "b");
    shutdown.cancel();
}
