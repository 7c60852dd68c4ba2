//! A webhook that injects sidecars, as a service mesh does: this program serves it to the API server. It is registered
//! twice, under a name that is called before Kickstand's and under one that is called after it.
//!
//! It also serves switches: addresses that a sidecar's readinessProbe asks, so that a case says when it becomes ready.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::routing::{get, post};
use axum::{Json, Router};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::lab::LABEL;
use crate::bench::floor;

/// Annotation with the containers to inject (JSON), followed by `-before` or `-after`.
pub(crate) const ANNOTATION: &str = "e2e.kickstand.dev/inject";
/// Annotation by which one of the two (`before`, `after`), or both (`around`), takes `restartPolicy` away from every init
/// container, as webhooks do that were built before there was such a field.
pub(crate) const STRIP: &str = "e2e.kickstand.dev/strip";
/// Webhook configurations are called in the order of their names; Kickstand's is `zz-kickstand`.
const NAMES: [&str; 2] = ["aa-e2e-injector", "zzz-e2e-injector"];

/// Whether it is called before or after Kickstand's webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    BeforeOurs = 0,
    AfterOurs = 1,
}

impl Order {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::BeforeOurs => "before",
            Self::AfterOurs => "after",
        }
    }

    /// The webhook configuration of that order.
    pub(crate) fn configuration(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// The server, as long as this lives.
pub(crate) struct Injector {
    url: String,
    host: String,
    port: u16,
    certificate: String,
    switches: Switches,
}

#[derive(Clone, Default)]
struct Switches {
    on: Arc<Mutex<BTreeSet<String>>>,
}

impl Injector {
    /// Serves on the port of `url`, under a certificate for its host. Port 0: any.
    pub(crate) async fn start(url: &str) -> Result<Self, String> {
        Self::try_start(url).await.map_err(|error| format!("no injecting webhook at {url}: {error:#}"))
    }

    async fn try_start(url: &str) -> Result<Self> {
        let uri: Uri = url.parse().context("no URL")?;
        let host = uri.host().context("it names no host")?.to_owned();
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), uri.port_u16().unwrap_or(443));
        let listener = TcpListener::bind(address).await?;
        let port = listener.local_addr()?.port();
        let made = rcgen::generate_simple_self_signed(vec![host.clone()])?;
        let certificate = made.cert.pem();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let tls = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key)?;
        let switches = Switches::default();
        let routes = Router::new()
            .route("/inject/{order}", post(inject))
            .route("/switch/{name}", get(switch))
            .with_state(switches.clone());
        let listener = Listener::start(listener, TlsAcceptor::from(Arc::new(tls)));
        tokio::spawn(axum::serve(listener, routes).into_future());
        Ok(Self { url: format!("https://{host}:{port}"), host, port, certificate, switches })
    }

    /// Tells the API server of it, for the namespaces of this program alone.
    pub(crate) async fn register(&self, client: &Client) -> Result<()> {
        let configurations = Api::<MutatingWebhookConfiguration>::all(client.clone());
        for order in [Order::BeforeOurs, Order::AfterOurs] {
            let configuration: MutatingWebhookConfiguration = serde_json::from_value(json!({
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": { "name": order.configuration() },
                "webhooks": [{
                    "name": format!("{}.e2e.kickstand.dev", order.word()),
                    "clientConfig": {
                        "url": format!("{}/inject/{}", self.url, order.word()),
                        "caBundle": k8s_openapi::ByteString(self.certificate.clone().into_bytes()),
                    },
                    "namespaceSelector": { "matchExpressions": [{ "key": LABEL, "operator": "Exists" }] },
                    "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"] }],
                    // A case that asks for a sidecar must not pass without it.
                    "failurePolicy": "Fail",
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                }],
            }))?;
            let apply = PatchParams::apply("kickstand-e2e").force();
            configurations.patch(order.configuration(), &apply, &Patch::Apply(configuration)).await?;
        }
        Ok(())
    }

    pub(crate) async fn unregister(&self, client: &Client) {
        let configurations = Api::<MutatingWebhookConfiguration>::all(client.clone());
        for name in NAMES {
            if let Err(error) = configurations.delete(name, &DeleteParams::default()).await {
                eprintln!("e2e: MutatingWebhookConfiguration {name} is left: {error}");
            }
        }
    }

    /// A readinessProbe that succeeds once [`Self::switch_on`] was called with this name.
    pub(crate) fn probe(&self, name: &str) -> Value {
        let get = json!({ "scheme": "HTTPS", "host": self.host, "port": self.port, "path": format!("/switch/{name}") });
        json!({ "readinessProbe": { "httpGet": get, "periodSeconds": 1 } })
    }

    pub(crate) fn switch_on(&self, name: &str) {
        self.switches.on.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }
}

/// Connections once they are through their handshake, so that a slow one holds up none of the others.
struct Listener {
    address: SocketAddr,
    connections: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl Listener {
    fn start(listener: TcpListener, tls: TlsAcceptor) -> Self {
        let address = listener.local_addr().unwrap_or_else(|_| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0));
        let (done, connections) = mpsc::channel(16);
        tokio::spawn(async move {
            loop {
                let Ok((stream, peer)) = listener.accept().await else { continue };
                let (tls, done) = (tls.clone(), done.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        let _ = done.send((stream, peer)).await;
                    }
                });
            }
        });
        Self { address, connections }
    }
}

impl axum::serve::Listener for Listener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.connections.recv().await {
            Some(connection) => connection,
            // The task above never ends.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(self.address)
    }
}

async fn switch(State(switches): State<Switches>, Path(name): Path<String>) -> StatusCode {
    let on = switches.on.lock().unwrap_or_else(PoisonError::into_inner).contains(&name);
    if on { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn inject(Path(order): Path<String>, Json(review): Json<Value>) -> Json<Value> {
    let pod = &review["request"]["object"];
    let wanted = pod["metadata"]["annotations"][format!("{ANNOTATION}-{order}")].as_str().unwrap_or("[]");
    let wanted: Vec<Value> = serde_json::from_str(wanted).unwrap_or_default();
    let there =
        |name: &Value| pod["spec"]["containers"].as_array().into_iter().flatten().any(|other| other["name"] == *name);
    let mut patch: Vec<Value> = wanted
        .into_iter()
        .filter(|container| !there(&container["name"]))
        .map(|container| json!({ "op": "add", "path": "/spec/containers/-", "value": container }))
        .collect();
    if order == Order::AfterOurs.word() && pod["metadata"]["annotations"][floor::WANTED] == "true" {
        patch.extend(floor::gate(pod));
    }
    let strips = pod["metadata"]["annotations"][STRIP].as_str().unwrap_or_default();
    if strips == "around" || strips == order {
        let init = pod["spec"]["initContainers"].as_array().into_iter().flatten().enumerate();
        let native = init.filter(|(_, container)| container.get("restartPolicy").is_some());
        patch.extend(
            native.map(|(at, _)| json!({ "op": "remove", "path": format!("/spec/initContainers/{at}/restartPolicy") })),
        );
    }
    let mut response = json!({ "uid": review["request"]["uid"], "allowed": true });
    if !patch.is_empty() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(k8s_openapi::ByteString(json!(patch).to_string().into_bytes()));
    }
    Json(json!({ "apiVersion": review["apiVersion"], "kind": review["kind"], "response": response }))
}

/// Kickstand's own configurations must come between the two, or, if it only asks others, before both.
pub(crate) async fn check_order(client: &Client) -> Result<()> {
    let all = Api::<MutatingWebhookConfiguration>::all(client.clone());
    for configuration in all.list(&kube::api::ListParams::default()).await? {
        let name = configuration.name_any();
        if name.contains("kickstand") && !NAMES.contains(&name.as_str()) {
            anyhow::ensure!(
                name.starts_with("0-") || (NAMES[0] < name.as_str() && name.as_str() < NAMES[1]),
                "{name} is not called between the two"
            );
        }
    }
    Ok(())
}
