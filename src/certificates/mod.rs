//! Certificates that need nothing from the user: the leader makes a CA and the webhook's certificate, keeps them in two
//! Secrets, publishes the CA in the webhook's configurations, and renews both by wall clock when two thirds of their life
//! are over.
//!
//! A CA is replaced without a gap: first the new one is published beside the old, then it signs, and the old one is
//! dropped when it ends.

mod authority;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::clock;
use crate::metrics::certificates::CertificateMetrics;
use authority::Pair;
use plan::Found;

/// How often what is there is compared with what should be: a `caBundle` that somebody blanked comes back that soon.
const EVERY: Duration = Duration::from_secs(30);
/// How soon, where something is left to be done.
const SOON: Duration = Duration::from_secs(5);
/// How long one look may take: a request that hangs must not end the renewals.
const LONGEST: Duration = Duration::from_secs(30);

/// Which objects.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Kickstand's namespace.
    pub namespace: String,
    /// The Service that the API server calls.
    pub service: String,
    /// The webhook configurations whose `caBundle`s are kept. One that is not there is done without.
    pub webhook_configurations: Vec<String>,
    /// The Secret with the CA: `ca.crt` (today's first, then older ones), `ca.key`.
    pub ca_secret: String,
    /// The Secret that the webhook mounts: `tls.crt`, `tls.key`, and `ca.crt` for people.
    pub tls_secret: String,
}

/// What went wrong. Tried again in a while.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read or write of an object.
    #[error("{verb} {object}: {source}")]
    Api {
        /// What was tried.
        verb: &'static str,
        /// On what.
        object: String,
        /// What came of it.
        #[source]
        source: Box<KubeError>,
    },
    /// No answer.
    #[error("no answer from the API server in {LONGEST:?}")]
    Silence,
    /// A certificate.
    #[error(transparent)]
    Make(#[from] authority::MakeError),
}

/// The names that the webhook's certificate is made out to: those by which a Service can be called.
#[must_use]
pub fn names(service: &str, namespace: &str) -> Vec<String> {
    vec![
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
        format!("{service}.{namespace}"),
    ]
}

/// Keeps the certificates while this replica leads, until `shutdown`.
pub async fn run(
    client: Client,
    settings: Settings,
    metrics: CertificateMetrics,
    mut leads: watch::Receiver<bool>,
    shutdown: CancellationToken,
) {
    let mut keeper = Keeper {
        secrets: Api::namespaced(client.clone(), &settings.namespace),
        configurations: Api::all(client),
        names: names(&settings.service, &settings.namespace),
        settings,
        metrics,
        absent: BTreeSet::new(),
    };
    loop {
        let pause = if *leads.borrow_and_update() {
            let kept = tokio::time::timeout(LONGEST, keeper.keep()).await.unwrap_or(Err(Error::Silence));
            match kept {
                Ok(true) => SOON,
                Ok(false) => EVERY,
                Err(error) => {
                    keeper.metrics.failures.inc();
                    error!(%error, "the webhook's certificates could not be kept; trying again in {SOON:?}");
                    SOON
                }
            }
        } else {
            Duration::MAX
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
            changed = leads.changed() => if changed.is_err() { return },
        }
    }
}

struct Keeper {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    names: Vec<String>,
    settings: Settings,
    metrics: CertificateMetrics,
    /// Configurations that were not there at the last look: said once.
    absent: BTreeSet<String>,
}

impl Keeper {
    /// One look, and what follows from it; `true` if something is left to be done soon.
    async fn keep(&mut self) -> Result<bool, Error> {
        let ca_secret = self.secret(&self.settings.ca_secret).await?;
        let tls_secret = self.secret(&self.settings.tls_secret).await?;
        let ca = pair(&ca_secret, "ca.crt", "ca.key");
        let leaf = pair(&tls_secret, "tls.crt", "tls.key");
        let configurations = self.configurations().await?;
        // Where there is none, nobody trusts anything else either; one that comes later gets what holds by then.
        let published = configurations.iter().all(|found| missing(found, &ca.certificate).is_empty());
        let plan = plan::plan(&Found { ca: ca.clone(), leaf: leaf.clone(), published }, &self.names, clock::now())?;

        let ca = match plan.ca {
            Some((new, why)) => {
                let data = json!({ "ca.crt": encoded(&new.certificate), "ca.key": encoded(&new.key) });
                self.write(&self.settings.ca_secret, &ca_secret, data).await?;
                info!(secret = self.settings.ca_secret, %why, "made a new CA");
                self.metrics.made_ca();
                new
            }
            None => ca,
        };
        for configuration in &configurations {
            self.publish(configuration, &ca.certificate).await?;
        }
        let leaf = match plan.leaf {
            Some((new, why)) => {
                let data = json!({
                    "ca.crt": encoded(&ca.certificate), "tls.crt": encoded(&new.certificate), "tls.key": encoded(&new.key),
                });
                self.write(&self.settings.tls_secret, &tls_secret, data).await?;
                info!(secret = self.settings.tls_secret, %why, "made a new certificate for the webhook");
                self.metrics.made_leaf();
                new
            }
            None => leaf,
        };
        self.metrics.valid_until(authority::valid_until(&ca.certificate), authority::valid_until(&leaf.certificate));
        Ok(plan.again)
    }

    async fn secret(&self, name: &str) -> Result<Secret, Error> {
        let what = format!("secret {name} (if somebody deleted it, `helm upgrade` makes it anew)");
        self.secrets.get(name).await.map_err(api("get", what))
    }

    /// Guarded by the version that was read: of two that would write, one reads again.
    async fn write(&self, name: &str, read: &Secret, data: Value) -> Result<(), Error> {
        let patch = json!({ "metadata": { "resourceVersion": read.metadata.resource_version }, "data": data });
        let written = self.secrets.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        written.map(drop).map_err(api("patch", format!("secret {name}")))
    }

    /// Into every webhook of a configuration, as it was just read.
    async fn publish(&self, configuration: &MutatingWebhookConfiguration, bundle: &str) -> Result<(), Error> {
        let operations = missing(configuration, bundle);
        if operations.is_empty() {
            return Ok(());
        }
        let name = configuration.metadata.name.as_deref().unwrap_or_default();
        let patch = serde_json::from_value(Value::Array(operations)).map_err(|error| Error::Api {
            verb: "patch",
            object: format!("mutatingwebhookconfiguration {name}"),
            source: Box::new(KubeError::SerdeError(error)),
        })?;
        self.configurations
            .patch(name, &PatchParams::default(), &Patch::<MutatingWebhookConfiguration>::Json(patch))
            .await
            .map_err(api("patch", format!("mutatingwebhookconfiguration {name}")))?;
        info!(configuration = name, "filled the caBundle");
        Ok(())
    }

    /// Those that are there. They are deleted first on the way out, and the early one may never have been made.
    async fn configurations(&mut self) -> Result<Vec<MutatingWebhookConfiguration>, Error> {
        let mut found = Vec::new();
        for name in &self.settings.webhook_configurations {
            let what = format!("mutatingwebhookconfiguration {name}");
            match self.configurations.get_opt(name).await.map_err(api("get", what))? {
                Some(configuration) => {
                    self.absent.remove(name);
                    found.push(configuration);
                }
                None if self.absent.insert(name.clone()) => {
                    warn!(configuration = name, "is not there: the API server does not call us by it");
                }
                None => {}
            }
        }
        Ok(found)
    }
}

/// The operations that fill each `caBundle` that is not `bundle`.
fn missing(configuration: &MutatingWebhookConfiguration, bundle: &str) -> Vec<Value> {
    let webhooks = configuration.webhooks.iter().flatten().enumerate();
    webhooks
        .filter(|(_, webhook)| {
            webhook.client_config.ca_bundle.as_ref().is_none_or(|published| published.0 != bundle.as_bytes())
        })
        .flat_map(|(at, webhook)| {
            [
                json!({ "op": "test", "path": format!("/webhooks/{at}/name"), "value": webhook.name }),
                json!({ "op": "add", "path": format!("/webhooks/{at}/clientConfig/caBundle"), "value": encoded(bundle) }),
            ]
        })
        .collect()
}

fn pair(secret: &Secret, certificate: &str, key: &str) -> Pair {
    let empty = BTreeMap::new();
    let data = secret.data.as_ref().unwrap_or(&empty);
    let text =
        |name: &str| data.get(name).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default();
    Pair { certificate: text(certificate), key: text(key) }
}

/// As Kubernetes writes bytes in JSON.
fn encoded(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

fn api(verb: &'static str, object: String) -> impl FnOnce(KubeError) -> Error {
    move |source| Error::Api { verb, object, source: Box::new(source) }
}
