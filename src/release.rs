//! `kickstand release`: opens every gate that is still shut, before the controllers go, or when somebody must have
//! everything go through.
//!
//! Permissions: `list` and `patch` on pods, `get` on taskruns, `create` on events; `delete` on the webhook's
//! configurations, if they are to go. With `get` on namespaces, one that is not there is told from one without gates.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, DeleteParams, ListParams};
use kube::{Client, Error as KubeError};
use tokio::sync::watch as channel;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use crate::effects::{self, Effects, Outcome};
use crate::metrics::controller::Metrics;
use crate::pod::decide::{self, Context};
use crate::pod::gate;
use crate::pod::known::Known;
use crate::pod::model::Pod;
use crate::pod::tekton::TASK_RUN;
use crate::pod::verdict::Verdict;
use crate::watch::{self, Live};

/// Between two looks at all pods.
const PAUSE: Duration = Duration::from_secs(1);
/// Looks in a row that find nothing shut, before it is believed: a pod that was being admitted may be listed late.
const CLEAN_LOOKS: u32 = 5;
/// How long one look at all pods may take.
const LONGEST_LIST: Duration = Duration::from_secs(20);
/// Pods that are released side by side.
const CONCURRENCY: usize = 8;
/// Pods in one answer.
const PAGE: u32 = 250;

/// What to release.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Delete these webhook configurations first.
    pub webhook_configurations: Vec<String>,
    /// These namespaces alone; empty = the whole cluster.
    pub namespaces: Vec<String>,
    /// Give up after this long.
    pub deadline: Duration,
    /// The clock.
    pub now: fn() -> Timestamp,
}

/// Why gates may still be shut.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not do as asked.
    #[error("cannot {0}")]
    Api(String, #[source] Box<KubeError>),
    /// A name that was mistyped, most likely.
    #[error("there is no namespace {0}: nothing was released. See `kubectl get namespaces`")]
    NoNamespace(String),
    /// No answer.
    #[error("no answer from the API server in {LONGEST_LIST:?}")]
    Silence,
    /// Time is over.
    #[error(
        "{} gates are still shut: {}. See the pods' Events; `kubectl annotate pod … kickstand.dev/ready=now` opens one by hand",
        .0.len(), .0.join(", ")
    )]
    StillShut(Vec<String>),
}

/// Releases every pod that is held, and ends the pods of runs that are over.
///
/// # Errors
/// If pods cannot be listed, or gates are still shut at the deadline.
pub async fn run(client: Client, settings: Settings) -> Result<(), Error> {
    for name in &settings.namespaces {
        // Whoever may not look at namespaces (the uninstall hook, for one) is taken at their word.
        let namespaces: Api<Namespace> = Api::all(client.clone());
        if let Ok(Ok(None)) = timeout(watch::READ_TIMEOUT, namespaces.get_metadata_opt(name)).await {
            return Err(Error::NoNamespace(name.clone()));
        }
    }
    for name in &settings.webhook_configurations {
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        match configurations.delete(name, &DeleteParams::default()).await {
            Ok(_) => info!(configuration = name, "deleted: no new pod comes by it from now on"),
            Err(KubeError::Api(status)) if status.code == 404 => info!(configuration = name, "is gone already"),
            Err(error) => {
                return Err(Error::Api(format!("delete mutatingwebhookconfiguration {name}"), Box::new(error)));
            }
        }
    }
    let (_leads, leads) = channel::channel(true);
    let acts = effects::Settings { nop_image: String::new(), instance: "release".to_owned() };
    let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
    let effects = Effects::new(client.clone(), acts, leads, settings.now, metrics);
    let (began, until) = ((settings.now)(), Instant::now() + settings.deadline);
    let mut clean = 0;
    loop {
        let listed = timeout(LONGEST_LIST, list(&client, &settings)).await.unwrap_or(Err(Error::Silence));
        let shut: Vec<Pod> = match listed {
            Ok(pods) => pods.into_iter().filter(|pod| is_held(pod, &settings)).collect(),
            Err(error) if Instant::now() < until => {
                warn!(%error, "could not look at the pods: trying again");
                clean = 0;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        clean = if shut.is_empty() { clean + 1 } else { 0 };
        if clean >= CLEAN_LOOKS {
            info!("no gate is shut");
            return Ok(());
        }
        if Instant::now() >= until && !shut.is_empty() {
            return Err(Error::StillShut(shut.iter().map(name).collect()));
        }
        if !shut.is_empty() {
            info!(pods = shut.len(), "gates are shut: opening them");
        }
        stream::iter(&shut)
            .for_each_concurrent(CONCURRENCY, |pod| release(&client, &effects, pod, &settings, began))
            .await;
        tokio::time::sleep(PAUSE).await;
    }
}

async fn release(client: &Client, effects: &Effects, pod: &Pod, settings: &Settings, began: Timestamp) {
    let verdict = match timeout(watch::READ_TIMEOUT, verdict(client, pod)).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => return warn!(pod = name(pod), %error, "could not read the TaskRun: looking again"),
        Err(_) => return warn!(pod = name(pod), "no answer about the TaskRun: looking again"),
    };
    let now = (settings.now)();
    let context = Context {
        verdict,
        verdict_seen: Some(began),
        now,
        namespace_opted_out: false,
        leaving: true,
        turned_classic: None,
        nop_image: "",
        tekton_nop_images: &[],
        known: Known::builtin(),
    };
    for action in decide::decide(pod, &context).actions {
        match effects.change(pod, &action.effect).await {
            Outcome::Done => {
                info!(pod = name(pod), reason = action.reason.as_str(), message = action.message, "done");
                effects.say(pod, action.reason, &action.message, &action.message).await;
            }
            other => info!(pod = name(pod), outcome = ?other, "not done: looking again"),
        }
    }
}

/// The verdict as the API server knows it now; none if TaskRuns are not served or may not be read.
async fn verdict(client: &Client, pod: &Pod) -> Result<Verdict, KubeError> {
    let Some(served) = watch::discover(client).await? else { return Ok(Verdict::None) };
    Ok(match watch::read(client, &served, pod).await? {
        Live::Run(run) => Verdict::of(pod, Some(&run)),
        Live::Gone => Verdict::of(pod, None),
        Live::Unreadable => Verdict::None,
    })
}

async fn list(client: &Client, settings: &Settings) -> Result<Vec<Pod>, Error> {
    let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
    let apis: Vec<Api<watch::Seen<Pod>>> = if settings.namespaces.is_empty() {
        vec![Api::all_with(client.clone(), &resource)]
    } else {
        let api = |namespace: &String| Api::namespaced_with(client.clone(), namespace, &resource);
        settings.namespaces.iter().map(api).collect()
    };
    let mut pods = Vec::new();
    for api in apis {
        let mut page = ListParams::default().labels(TASK_RUN).limit(PAGE);
        loop {
            let list = api.list(&page).await.map_err(|error| Error::Api("list pods".to_owned(), Box::new(error)))?;
            pods.extend(list.items.into_iter().map(|seen| seen.object));
            match list.metadata.continue_ {
                Some(token) if !token.is_empty() => page = page.continue_token(&token),
                _ => break,
            }
        }
    }
    Ok(pods)
}

/// Held, and not about to end anyway.
fn is_held(pod: &Pod, settings: &Settings) -> bool {
    gate::is_shut(pod)
        && !decide::is_terminal(pod)
        && pod.metadata.deletion_timestamp.is_none()
        && !decide::is_past_deadline(pod, (settings.now)())
        && !crate::pod::tekton::is_cancelled(pod)
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}
