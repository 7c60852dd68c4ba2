//! `kickstand doctor`: dry runs of a pod like a TaskRun's, and what they say in words. Nothing is stored anywhere.
//!
//! Permissions: `create` on pods in the namespace. With `get` on the controller's Lease and on the namespace, and `list`
//! on mutatingwebhookconfigurations, it names causes that it can otherwise only guess at.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::to_bytes;
use axum::http::HeaderMap;
use futures::stream::{self, StreamExt as _};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{Api, ListParams, PostParams};
use kube::client::Body;
use kube::core::{Request, Selector, SelectorExt as _};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};

use crate::pod::contract::FACTS;
use crate::pod::doctor::{self, Answer, Around, Finding, Hooks, Level, Ours};
use crate::pod::facts::Facts;

/// For one dry run: more than two webhooks that hang take, of those who do without an answer.
const LONGEST_DRY_RUN: Duration = Duration::from_secs(30);
/// For a read that only makes the words better.
const LONGEST_READ: Duration = Duration::from_secs(5);
/// Dry runs side by side: webhooks that hang must not add up.
const CONCURRENCY: usize = 5;
/// Between two signs of life, for whoever waits.
const PROGRESS: Duration = Duration::from_secs(5);
/// Before what may pass is looked at again.
const PAUSE: Duration = Duration::from_secs(2);
/// A pod is no larger.
const MOST_BYTES: usize = 4 << 20;

/// What to try, and where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace.
    pub namespace: String,
    /// More annotations of the pod.
    pub annotations: BTreeMap<String, String>,
    /// The image that its containers name; it is never pulled.
    pub image: String,
    /// Dry runs in a row.
    pub times: usize,
    /// How long what may pass by itself is tried again.
    pub wait: Duration,
    /// Kickstand's own namespace.
    pub home: String,
    /// The controller's Lease there.
    pub lease: String,
    /// What is written.
    pub output: Output,
}

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// Why there is nothing to say.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name that was mistyped, most likely.
    #[error("there is no namespace {0}: nothing was tried. See `kubectl get namespaces`")]
    NoNamespace(String),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

/// Tries, tells, and says whether all is well (warnings aside).
///
/// # Errors
/// If the namespace is not there, or the output cannot be written: the caller should exit with 2.
pub async fn run(
    client: &Client,
    settings: &Settings,
    mut stdout: impl Write,
    mut stderr: impl Write,
) -> Result<bool, Error> {
    let sample = doctor::sample(&settings.image, &settings.annotations);
    let until = Instant::now() + settings.wait;
    let findings = loop {
        let found = examine(client, settings, &sample, &mut stderr).await?;
        let passing = found.iter().find(|finding| finding.may_pass && finding.level != Level::Ok);
        match passing {
            Some(finding) if Instant::now() + PAUSE < until => {
                writeln!(stderr, "not well yet, trying again: {}", finding.message)?;
                sleep(PAUSE).await;
            }
            _ => break found,
        }
    };
    let well = findings.iter().all(|finding| finding.level != Level::Error);
    let text = match settings.output {
        Output::Text => in_words(settings, &findings),
        Output::Json => {
            let namespace = &settings.namespace;
            let report = json!({ "namespace": namespace, "dryRuns": settings.times, "ok": well, "findings": findings });
            format!("{report:#}\n")
        }
    };
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever reads us has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(well),
    }
}

/// All dry runs once, beside what else can be known.
async fn examine(
    client: &Client,
    settings: &Settings,
    sample: &Value,
    stderr: &mut impl Write,
) -> Result<Vec<Finding>, Error> {
    let done = AtomicUsize::new(0);
    let began = Instant::now();
    let mut tick = interval_at(began + PROGRESS, PROGRESS);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let tries = async {
        let answers = stream::iter(0..settings.times).map(|_| dry_run(client, &settings.namespace, sample));
        let answers = answers.buffered(CONCURRENCY).inspect(|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        answers.collect::<Vec<_>>().await
    };
    let work = async { tokio::join!(tries, look_around(client, settings, sample)) };
    tokio::pin!(work);
    let (answers, around) = loop {
        tokio::select! {
            found = &mut work => break found,
            _ = tick.tick() => {
                let (all, done, seconds) = (settings.times, done.load(Ordering::Relaxed), began.elapsed().as_secs());
                writeln!(stderr, "{done} of {all} dry runs are answered after {seconds} s: is a webhook slow?")?;
            }
        }
    };
    let answers: Vec<Answer> = answers.into_iter().collect::<Result<_, Error>>()?;
    Ok(doctor::findings(sample, &answers, &around))
}

/// By hand: a client's `create` drops the warnings.
async fn dry_run(client: &Client, namespace: &str, sample: &Value) -> Result<Answer, Error> {
    let params = PostParams { dry_run: true, field_manager: Some("kickstand-doctor".to_owned()) };
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let request = match Request::new(path).create(&params, sample.to_string().into_bytes()) {
        Ok(request) => request.map(Body::from),
        Err(error) => return Ok(Answer::None(error.to_string())),
    };
    let answer = async {
        let response = client.send(request).await.map_err(|error| in_full(&error))?;
        let (head, body) = response.into_parts();
        let bytes = to_bytes(axum::body::Body::new(body), MOST_BYTES).await.map_err(|error| in_full(&error))?;
        let body: Value = serde_json::from_slice(&bytes)
            .map_err(|_| format!("{}: {}", head.status, String::from_utf8_lossy(&bytes)))?;
        Ok::<_, String>((head, body))
    };
    let (head, body) = match timeout(LONGEST_DRY_RUN, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(why)) => return Ok(Answer::None(why)),
        Err(_) => return Ok(Answer::None(format!("no answer in {LONGEST_DRY_RUN:?}"))),
    };
    if head.status.is_success() {
        return Ok(Answer::Created(Box::new(body), warnings(&head.headers)));
    }
    if head.status.as_u16() == 404 && body["details"]["kind"] == "namespaces" {
        return Err(Error::NoNamespace(namespace.to_owned()));
    }
    let words = body["message"].as_str().map_or_else(|| head.status.to_string(), str::to_owned);
    // Too busy, or a webhook that must answer and does not: nothing was decided.
    let undecided = head.status.is_server_error() || head.status.as_u16() == 429;
    Ok(if undecided { Answer::None(words) } else { Answer::Refused(words) })
}

/// With its causes: the outermost says little of a connection.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            let _ = write!(text, ": {words}");
        }
        next = cause.source();
    }
    text
}

/// The texts of `Warning: 299 - "…"`.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let text = |value: &[u8]| {
        let value = String::from_utf8_lossy(value);
        let (_, quoted) = value.split_once('"')?;
        let (mut text, mut rest) = (String::new(), quoted.chars());
        while let Some(next) = rest.next().filter(|next| *next != '"') {
            text.push(if next == '\\' { rest.next()? } else { next });
        }
        Some(text)
    };
    headers.get_all("warning").iter().filter_map(|value| text(value.as_bytes())).collect()
}

async fn look_around(client: &Client, settings: &Settings, sample: &Value) -> Around {
    let namespaces = Api::<Namespace>::all(client.clone());
    let leases = Api::<Lease>::namespaced(client.clone(), &settings.home);
    let configurations = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let everything = ListParams::default();
    let (namespace, lease, configurations) = tokio::join!(
        timeout(LONGEST_READ, namespaces.get(&settings.namespace)),
        timeout(LONGEST_READ, leases.get(&settings.lease)),
        timeout(LONGEST_READ, configurations.list(&everything)),
    );
    let labels = match namespace {
        Ok(Ok(namespace)) => Some(namespace.metadata.labels.unwrap_or_default()),
        _ => None,
    };
    let lease = match lease {
        Ok(Ok(lease)) => {
            let facts = lease.annotations().get(FACTS).map(String::as_str);
            let facts = Facts::read(facts);
            doctor::Lease::Held(lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default(), facts)
        }
        Ok(Err(kube::Error::Api(status))) => doctor::Lease::Unread(status.message.clone()),
        Ok(Err(error)) => doctor::Lease::Unread(in_full(&error)),
        Err(_) => doctor::Lease::Unread(format!("no answer in {LONGEST_READ:?}")),
    };
    // Without the namespace's labels nobody can say whom a configuration selects.
    let hooks = match (configurations, &labels) {
        (Ok(Ok(list)), Some(labels)) => Some(hooks(&list.items, labels, sample)),
        _ => None,
    };
    let (namespace, home) = (settings.namespace.clone(), settings.home.clone());
    Around { namespace, labels, home, lease, hooks }
}

type Labels = BTreeMap<String, String>;

fn hooks(configurations: &[MutatingWebhookConfiguration], namespace: &Labels, sample: &Value) -> Hooks {
    let label = |(key, value): (&String, &Value)| (key.clone(), value.as_str().unwrap_or_default().to_owned());
    let pod: Labels = sample["metadata"]["labels"].as_object().into_iter().flatten().map(label).collect();
    let mut hooks = Hooks::default();
    for configuration in configurations {
        for webhook in configuration.webhooks.iter().flatten().filter(|webhook| takes_pods(webhook)) {
            let asks = selects(webhook.namespace_selector.as_ref(), namespace)
                && selects(webhook.object_selector.as_ref(), &pod);
            if webhook.name.ends_with(".early.kickstand.dev") {
                continue;
            }
            if webhook.name.ends_with(".webhook.kickstand.dev") {
                let trusted = webhook.client_config.ca_bundle.as_ref().is_some_and(|bundle| !bundle.0.is_empty());
                hooks.ours = match (hooks.ours, asks, trusted) {
                    (_, true, true) => Ours::Asks,
                    (_, true, false) => Ours::Untrusted,
                    (Ours::Missing, false, _) => Ours::Elsewhere,
                    (before, false, _) => before,
                };
            } else if asks && !hooks.others.contains(&configuration.name_any()) {
                hooks.others.push(configuration.name_any());
            }
        }
    }
    hooks
}

fn takes_pods(webhook: &MutatingWebhook) -> bool {
    let has = |list: Option<&Vec<String>>, wanted: &[&str]| {
        list.is_some_and(|list| list.iter().any(|it| wanted.contains(&it.as_str())))
    };
    webhook.rules.iter().flatten().any(|rule| {
        has(rule.operations.as_ref(), &["CREATE", "*"])
            && has(rule.api_groups.as_ref(), &["", "*"])
            && has(rule.resources.as_ref(), &["pods", "*", "*/*"])
    })
}

/// What cannot be read may well select.
fn selects(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    let Some(selector) = selector else { return true };
    Selector::try_from(selector.clone()).map_or(true, |selector| selector.matches(labels))
}

fn in_words(settings: &Settings, findings: &[Finding]) -> String {
    let mut text = format!(
        "Namespace {}: {} dry runs of a pod like a TaskRun's with a declared server, {}.\n\n",
        settings.namespace,
        settings.times,
        doctor::SIDECAR
    );
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    for finding in findings {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warning => "WARNING",
            Level::Error => "ERROR",
        };
        let _ = writeln!(text, "{level:<9}{}", finding.message);
        if !finding.next.is_empty() {
            let _ = writeln!(text, "         Next: {}", finding.next);
        }
    }
    let verdict = match (count(Level::Error), count(Level::Warning)) {
        (0, 0) => "All is well.".to_owned(),
        (0, 1) => "No run is harmed; 1 warning.".to_owned(),
        (0, warnings) => format!("No run is harmed; {warnings} warnings."),
        (1, _) => "Not well: 1 error.".to_owned(),
        (errors, _) => format!("Not well: {errors} errors."),
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

#[cfg(test)]
mod tests;
