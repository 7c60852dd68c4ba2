//! Tekton's API, which may come, go, and change its version while we run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ApiResource};
use kube::runtime::watcher::Event;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::follow::{self, Told, delays, follow};
use super::slim::Seen;
use super::store::{Scope, Store};
use super::{Look, api};
use crate::metrics::controller::{Metrics, Watched};
use crate::pod::model::Pod;
use crate::pod::refusals::Refusal;
use crate::pod::tekton;
use crate::pod::verdict::TaskRun;

/// The versions in which the fields that we read are the same, the best first.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// How long a live read of a TaskRun may take.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(5);
const SHORTEST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);

/// In which version are TaskRuns served? `None` = in none that we know: Tekton is not installed.
///
/// # Errors
/// If the API server does not say.
pub(crate) async fn discover(client: &Client) -> Result<Option<ApiResource>, kube::Error> {
    for version in VERSIONS {
        match client.list_api_group_resources(&format!("tekton.dev/{version}")).await {
            Ok(list) if list.resources.iter().any(|resource| resource.name == "taskruns") => {
                return Ok(Some(ApiResource {
                    group: "tekton.dev".to_owned(),
                    version: version.to_owned(),
                    api_version: format!("tekton.dev/{version}"),
                    kind: "TaskRun".to_owned(),
                    plural: "taskruns".to_owned(),
                }));
            }
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// What a live read of a pod's TaskRun gives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Live {
    /// The TaskRun that has its owner's name now.
    Run(Box<TaskRun>),
    /// There is none of that name.
    Gone,
    /// We may not read it.
    Unreadable,
}

/// Reads the TaskRun that has the name of a pod's owner, now.
///
/// # Errors
/// If the answer says nothing of the TaskRun. So does a 404 about the resource instead of the object: a version of
/// Tekton's API that is served no more must not look like TaskRuns that were deleted.
pub(crate) async fn read(client: &Client, served: &ApiResource, pod: &Pod) -> Result<Live, kube::Error> {
    let Some(owner) = tekton::owner(pod) else { return Ok(Live::Unreadable) };
    let runs: Api<Seen<TaskRun>> = Api::namespaced_with(client.clone(), &pod.metadata.namespace, served);
    match runs.get(&owner.name).await {
        Ok(run) => Ok(Live::Run(Box::new(run.object))),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Live::Unreadable),
        Err(kube::Error::Api(status))
            if status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == owner.name) =>
        {
            Ok(Live::Gone)
        }
        Err(error) => Err(error),
    }
}

/// Follows TaskRuns in whichever version is served; never returns.
pub(super) async fn run(
    client: &Client,
    scopes: &[Scope],
    streams: bool,
    store: &Store,
    look: &Look,
    refusals: &mpsc::UnboundedSender<Refusal>,
    metrics: &Metrics,
) {
    // A run that is over is kept only if one of its pods is not: so pods come first.
    store.pods_synced().await;
    let mut backoff = delays(SHORTEST_BACKOFF, LONGEST_BACKOFF);
    let mut said = None;
    let lose_all = || {
        for scope in scopes {
            store.lose_runs(scope);
        }
    };
    loop {
        let found = discover(client).await;
        let words = match &found {
            Ok(Some(served)) => format!("following TaskRuns in {}", served.api_version),
            Ok(None) => "TaskRuns are not served: is Tekton installed? Looking again from time to time".to_owned(),
            Err(error) => format!("cannot tell whether TaskRuns are served, trying again: {error}"),
        };
        if said.as_ref() != Some(&words) {
            if found.is_err() {
                warn!("{words}");
            } else {
                info!("{words}");
            }
            said = Some(words);
        }
        match found {
            Ok(Some(served)) => {
                store.set_served(Some(served.clone()));
                let listed = AtomicBool::new(false);
                let follows = scopes.iter().map(|scope| {
                    let tell = |told: Told<Seen<TaskRun>>| match told {
                        Told::Event(event) => {
                            listed.fetch_or(!matches!(event, Event::Init), Ordering::Relaxed);
                            let event = super::unwrap(event);
                            if let Event::InitApply(run) | Event::Apply(run) = &event
                                && let Some(refusal) = Refusal::of(run)
                            {
                                // Nobody listens any more only when the controller is going away.
                                let _ = refusals.send(refusal);
                            }
                            look.at(store.apply_run(scope, event));
                        }
                        Told::Refused => store.lose_runs(scope),
                        Told::Well | Told::Blind => {}
                    };
                    let runs = api::<TaskRun>(client, scope, &served);
                    Box::pin(follow(runs, follow::config(streams), Watched::TaskRuns, metrics, tell))
                });
                futures::future::select_all(follows).await;
                if listed.into_inner() {
                    backoff = delays(SHORTEST_BACKOFF, LONGEST_BACKOFF);
                }
                store.set_served(None);
                lose_all();
            }
            Ok(None) => lose_all(),
            Err(_) => metrics.watch_error(Watched::TaskRuns),
        }
        tokio::time::sleep(backoff.next().unwrap_or(LONGEST_BACKOFF)).await;
    }
}
