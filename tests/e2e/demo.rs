//! The TaskRuns of `examples/`, each with and without Kickstand, as timelines for a person.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kickstand::pod::contract::READY;
use serde::Serialize;
use serde_json::Value;

use crate::cli::DemoArgs;
use crate::harness::case::{Strategy, TektonNop};
use crate::harness::lab::Lab;
use crate::harness::pods::PodExt;
use crate::harness::scene::Scene;
use crate::harness::story::{self, Story, seconds};
use crate::harness::{injector, install, tekton};

/// The image in the examples, which the demo replaces by one that the cluster has.
const IMAGE: &str = "busybox:1.37";
const FLAGS: [(&str, &str); 3] = [
    ("await-sidecar-readiness", "false"),
    ("running-in-environment-with-injected-sidecars", "false"),
    ("enable-kubernetes-sidecar", "true"),
];

struct Example {
    name: String,
    about: String,
    manifest: Value,
}

/// What became of one TaskRun.
#[derive(Debug, Serialize)]
struct Seen {
    started: Timestamp,
    story: Option<Story>,
    verdict: String,
    /// Of the last sidecar: its log's last line, if it can still be read after the pod's end.
    log: Option<String>,
    /// Our Events.
    events: Vec<String>,
}

pub(crate) async fn run(lab: &Lab, args: &DemoArgs) -> Result<bool> {
    let examples = read(Path::new("examples"), &lab.images.busybox, &args.filter)?;
    install::install(lab, Strategy::Default).await?;
    tekton::set(lab, &FLAGS, TektonNop::Its).await?;
    if !lab.is_quiet() {
        println!("Tekton is told to keep out of it:");
        for (key, value) in FLAGS {
            println!("  {key}: \"{value}\"");
        }
        println!(
            "Each example runs twice at a time: in a namespace that Kickstand keeps off, and in one that it covers."
        );
    }
    let mut all = Vec::new();
    for example in &examples {
        if example.manifest.to_string().contains(injector::ANNOTATION)
            && let Err(why) = &lab.injector
        {
            eprintln!("{} is left out: {why}", example.name);
            continue;
        }
        if !lab.is_quiet() {
            println!("\n{}\n{}\n", example.name, indent(&example.about));
        }
        let without = Scene::new(lab, lab.namespace("demo-without", Some(false)).await?);
        let with = Scene::new(lab, lab.namespace("demo-with", Some(true)).await?);
        let patience = Duration::from_secs(args.patience);
        let (left, right) =
            tokio::try_join!(watch(&without, &example.manifest, patience), watch(&with, &example.manifest, patience),)?;
        if !lab.is_quiet() {
            print!("{}", table(&left, &right, args.patience));
            println!("\n  {}", in_words(&left, &right));
        }
        for scene in [without, with] {
            lab.delete_namespace(&scene.namespace).await?;
        }
        all.push(serde_json::json!({ "example": example.name, "without": left, "with": right }));
    }
    if lab.is_quiet() {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(true)
}

fn read(folder: &Path, image: &str, filter: &[String]) -> Result<Vec<Example>> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .with_context(|| format!("no folder {}: run this from the top of the repository", folder.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|it| it == "yaml"))
        .collect();
    paths.sort();
    let mut examples = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !filter.is_empty() && !filter.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let about: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("# ")).collect();
        let manifest = serde_saphyr::from_str(&text.replace(IMAGE, image))
            .with_context(|| format!("{} is no YAML", path.display()))?;
        examples.push(Example { name, about: about.join("\n"), manifest });
    }
    ensure!(!examples.is_empty(), "no example in {} has {filter:?} in its name", folder.display());
    Ok(examples)
}

/// Runs it until its pod ends, or for as long as patience lasts after its steps.
async fn watch(scene: &Scene<'_>, manifest: &Value, patience: Duration) -> Result<Seen> {
    let started = kickstand::clock::now();
    let run = scene.start_manifest(manifest.clone()).await?;
    let pod = run.pod().await?;
    scene.wait_for_pod(&pod, "its steps are done", PodExt::steps_done).await?;
    let _ = tokio::time::timeout(patience, run.pod_ends()).await;
    let _ = tokio::time::timeout(patience, run.verdict()).await;
    // The Event comes after what it tells of.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let last = scene.record.look(|seen| seen.pod(&pod));
    let log = match &last {
        Some(last) => last_line(scene, last).await,
        None => None,
    };
    Ok(scene.record.look(|seen| {
        let verdict = seen.run(&run.name).and_then(|run| run.verdict().cloned());
        let events = seen.events(&pod).map(|(_, event)| event).filter_map(|event| {
            let reason = event.reason.as_deref().filter(|reason| reason.starts_with("Kickstand"))?;
            let kind = event.type_.as_deref().unwrap_or_default();
            Some(format!("{kind} {reason}: {}", event.message.as_deref().unwrap_or_default()))
        });
        Seen {
            started,
            story: Story::of(seen, &pod, READY),
            verdict: verdict.map_or_else(|| "none yet".to_owned(), |it| it.reason),
            log,
            events: events.collect(),
        }
    }))
}

async fn last_line(scene: &Scene<'_>, pod: &Pod) -> Option<String> {
    let sidecar = story::sidecars(pod).pop()?;
    let log = scene.logs(pod.name(), &sidecar).await.ok()?;
    log.lines().last().map(str::to_owned)
}

fn table(without: &Seen, with: &Seen, patience: u64) -> String {
    let cells = |seen: &Seen| {
        let at = |time: Option<Timestamp>, missing: &str| {
            seconds(Some(seen.started), time).map_or_else(|| missing.to_owned(), |it| format!("{it:.1} s"))
        };
        let story = seen.story.as_ref();
        let late = format!("not within {patience} s");
        [
            at(story.and_then(|it| it.sidecars_ready), "never"),
            at(story.and_then(|it| it.step_started), "never"),
            at(story.and_then(|it| it.steps_done), "never"),
            at(story.and_then(|it| it.pod_ended), &late),
            seen.verdict.clone(),
            story.map(|it| it.phase.clone()).unwrap_or_default(),
        ]
    };
    let rows = ["sidecar ready", "step started", "steps done", "pod ended", "verdict of the run", "phase of the pod"];
    let mut text = format!("  {:20} {:>20} {:>20}\n", "since creation", "without Kickstand", "with Kickstand");
    for ((row, left), right) in rows.into_iter().zip(cells(without)).zip(cells(with)) {
        let _ = writeln!(text, "  {row:20} {left:>20} {right:>20}");
    }
    for (name, seen) in [("without", without), ("with", with)] {
        let last = seen.log.as_deref().unwrap_or("nothing, or it is lost");
        let _ = writeln!(text, "  the sidecar's log ends, {name}: {last}");
    }
    for event in &with.events {
        let _ = writeln!(text, "  {event}");
    }
    text
}

/// What one has just seen: from the times, not from what was hoped for.
fn in_words(without: &Seen, with: &Seen) -> String {
    let mut words = Vec::new();
    if let (Some(left), Some(right)) = (&without.story, &with.story) {
        let lead = |story: &Story| seconds(story.sidecars_ready, story.step_started);
        match (lead(left), lead(right)) {
            (Some(left), Some(right)) if left < 0.0 && right >= 0.0 => words.push(format!(
                "Without Kickstand the step started {:.1} s before the sidecar was ready; with it, {right:.1} s after.",
                -left
            )),
            (None, Some(right)) if right >= 0.0 && left.step_started.is_some() => words.push(format!(
                "Without Kickstand the step started although the sidecar was not ready; with it, {right:.1} s after it was."
            )),
            (None, None) => {
                let held = seconds(left.step_started.map(|_| left.created), left.step_started)
                    .zip(seconds(Some(right.created), right.step_started));
                if let Some((left, right)) = held {
                    let said = if with.events.iter().any(|it| it.starts_with("Warning")) { ", with a Warning" } else { "" };
                    words.push(format!(
                        "The sidecar was never ready: without Kickstand the step started after {left:.1} s and nobody \
                         said so; with it, after {right:.1} s{said}."
                    ));
                }
            }
            _ => {}
        }
        if without.verdict != with.verdict {
            words.push(format!("The run ended {} without it, {} with it.", without.verdict, with.verdict));
        }
        match (left.pod_ended, seconds(right.steps_done, right.pod_ended)) {
            (None, Some(after)) => {
                words.push(format!("Without it the pod runs on; with it, it ended {after:.1} s after its last step."));
            }
            (Some(_), Some(_)) if left.phase != right.phase => {
                words.push(format!("The pod ended {} without it, {} with it.", left.phase, right.phase));
            }
            _ => {}
        }
    }
    if words.is_empty() { "The two did not differ.".to_owned() } else { words.join(" ") }
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}
