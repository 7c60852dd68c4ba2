//! How long the webhook takes to answer: by its own histogram, and as the API server's clients feel it.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use serde_json::json;

use super::say;
use super::table::{Part, Samples, markdown};
use crate::harness::install::{self, Component};
use crate::harness::lab::Lab;
use crate::harness::pods::{PodExt as _, like_a_task_runs};

const DURATION: &str = "kickstand_webhook_review_duration_seconds_bucket";
const POD_BYTES: usize = 30 * 1024;

pub(crate) async fn measure(lab: &Lab, reviews: usize) -> Result<Part> {
    let covered = lab.namespace("bench-with", Some(true)).await?;
    let left_alone = lab.namespace("bench-without", Some(false)).await?;
    // The first ones open connections.
    ask(lab, &covered, 20).await?;
    let before = histogram(lab).await?;
    say(&format!("{reviews} reviews of a {POD_BYTES} byte pod, and as many creations without one"));
    let with = ask(lab, &covered, reviews).await?;
    let after = histogram(lab).await?;
    let without = ask(lab, &left_alone, reviews).await?;
    lab.delete_namespace(&covered).await?;
    lab.delete_namespace(&left_alone).await?;

    let spent: BTreeMap<Bound, f64> =
        after.iter().map(|(bound, count)| (*bound, count - before.get(bound).unwrap_or(&0.0))).collect();
    let milliseconds = |samples: &Samples, share| {
        samples.quantile(share).map_or_else(|| "–".to_owned(), |it| format!("{:.1} ms", it * 1000.0))
    };
    let rows = vec![
        vec!["the webhook's own histogram".to_owned(), bucket(&spent, 0.5), bucket(&spent, 0.99)],
        vec!["a dry-run creation, with the webhook".to_owned(), milliseconds(&with, 0.5), milliseconds(&with, 0.99)],
        vec!["the same, without it".to_owned(), milliseconds(&without, 0.5), milliseconds(&without, 0.99)],
    ];
    let buckets: BTreeMap<String, f64> = spent.iter().map(|(bound, count)| (bound.text(), *count)).collect();
    let raw = json!({ "buckets": buckets, "with": with, "without": without });
    Ok(Part { title: "Webhook, a 30 KiB pod", markdown: markdown(&["", "p50", "p99"], &rows), raw })
}

async fn ask(lab: &Lab, namespace: &str, times: usize) -> Result<Samples> {
    let pod: Pod = serde_json::from_value(like_a_task_runs("asked", &BTreeMap::new(), POD_BYTES))?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let pods = lab.pods(namespace);
    let mut samples = Samples::default();
    for _ in 0..times {
        let start = Instant::now();
        pods.create(&params, &pod).await.context("a dry run of a pod's creation")?;
        samples.push(Some(start.elapsed().as_secs_f64()));
    }
    Ok(samples)
}

/// An upper bound of a bucket, in nanoseconds: a whole number, so that bounds can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bound(u64);

impl Bound {
    const INFINITE: Self = Self(u64::MAX);

    fn read(text: &str) -> Option<Self> {
        if text == "+Inf" {
            return Some(Self::INFINITE);
        }
        let seconds: f64 = text.parse().ok()?;
        u64::try_from(std::time::Duration::try_from_secs_f64(seconds).ok()?.as_nanos()).ok().map(Self)
    }

    fn text(self) -> String {
        if self == Self::INFINITE {
            return "more".to_owned();
        }
        format!("{} ms", std::time::Duration::from_nanos(self.0).as_secs_f64() * 1000.0)
    }
}

/// The buckets of all webhook pods together, as far as they have that metric.
async fn histogram(lab: &Lab) -> Result<BTreeMap<Bound, f64>> {
    let mut all = BTreeMap::new();
    for pod in install::pods(lab, Component::Webhook).await? {
        let text = metrics(lab, pod.name()).await?;
        for line in text.lines().filter(|line| line.starts_with(DURATION)) {
            let bound = line.split_once("le=\"").and_then(|(_, rest)| Bound::read(rest.split_once('"')?.0));
            let count = line.split_once("} ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<f64>().ok());
            if let Some((bound, count)) = bound.zip(count) {
                *all.entry(bound).or_insert(0.0) += count;
            }
        }
    }
    Ok(all)
}

/// A pod's metrics, through the API server.
pub(crate) async fn metrics(lab: &Lab, pod: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}:8080/proxy/metrics", install::NAMESPACE);
    let request = axum::http::Request::get(&path).body(Vec::new())?;
    lab.client.request_text(request).await.with_context(|| format!("the metrics of {pod}"))
}

/// The bucket in which a share of all lies.
fn bucket(cumulative: &BTreeMap<Bound, f64>, share: f64) -> String {
    let Some(total) = cumulative.values().next_back().copied().filter(|total| *total > 0.0) else {
        return "no such metric".to_owned();
    };
    let found = cumulative.iter().find(|(_, count)| **count >= share * total);
    match found {
        Some((bound, _)) if *bound == Bound::INFINITE => "more than the last bucket".to_owned(),
        Some((bound, _)) => format!("≤ {}", bound.text()),
        None => "–".to_owned(),
    }
}
