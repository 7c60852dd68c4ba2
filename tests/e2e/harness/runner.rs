//! Runs groups one after another, and the cases of a group side by side.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::{FutureExt as _, StreamExt as _};

use super::case::{Case, Group, Strategy};
use super::lab::Lab;
use super::report::{self, Outcome, Tried};
use super::scene::{Scene, Skip};
use super::{injector, install, istio, tekton};
use crate::cli::Format;

/// No case may take longer. (The longest waits for an escalation of two and a half minutes.)
const LIMIT: Duration = Duration::from_secs(600);
/// A sign of life at least that often.
const TICK: Duration = Duration::from_secs(10);

/// The cases whose name or group has one of the words.
pub(crate) fn select(groups: Vec<Group>, filter: &[String]) -> Result<Vec<Group>> {
    let wanted = |group: &Group, case: &Case| {
        let text = format!("{}: {}", group.name, case.name);
        filter.is_empty() || filter.iter().any(|word| text.contains(word.as_str()))
    };
    let groups: Vec<Group> = groups
        .into_iter()
        .map(|group| Group {
            cases: group.cases.iter().filter(|case| wanted(&group, case)).cloned().collect(),
            ..group
        })
        .filter(|group| !group.cases.is_empty())
        .collect();
    ensure!(!groups.is_empty(), "no test has {filter:?} in its name or group; `e2e list` shows them");
    Ok(groups)
}

pub(crate) fn list(groups: &[Group], filter: &[String], format: Format) {
    let Ok(groups) = select(groups.to_vec(), filter) else { return };
    if format == Format::Json {
        let names: Vec<_> = groups
            .iter()
            .flat_map(|group| {
                group.cases.iter().map(|case| serde_json::json!({ "group": group.name, "name": case.name }))
            })
            .collect();
        println!("{}", serde_json::json!(names));
        return;
    }
    for group in groups {
        println!("\n{}: {}", group.name, group.about);
        for (key, value) in group.flags {
            println!("  ({key}: \"{value}\")");
        }
        for case in group.cases {
            println!("  {}", case.name);
        }
    }
}

pub(crate) async fn run(lab: &Lab, groups: Vec<Group>) -> Result<bool> {
    let start = Instant::now();
    let total: usize = groups.iter().map(|group| group.cases.len()).sum();
    let board = Board { lab, total, running: Mutex::default(), tried: Mutex::default() };
    let ticking = board.tick(start);
    let work = async {
        let mut installed = None;
        for group in &groups {
            say(&format!("group {}: {}", group.name, group.about));
            if let Err(error) = prepare(lab, group, &mut installed).await {
                let why = error.downcast::<Skip>()?.to_string();
                group.cases.iter().for_each(|case| board.skip(group, case, &why));
                continue;
            }
            tekton::set(lab, group.flags, group.nop).await?;
            let at_once = if group.disturbing { 1 } else { lab.options.at_once.max(1) };
            futures::stream::iter(&group.cases)
                .map(|case| board.attempt(group, case))
                .buffer_unordered(at_once)
                .collect::<Vec<()>>()
                .await;
        }
        anyhow::Ok(())
    };
    let done = tokio::select! {
        done = work => done,
        () = ticking => Ok(()),
    };
    let mut tried = board.tried.into_inner().unwrap_or_else(PoisonError::into_inner);
    tried.sort_by_key(|it| groups.iter().position(|group| group.name == it.group));
    let (text, all_well) = report::summary(&tried, start.elapsed());
    if lab.is_quiet() {
        println!("{}", serde_json::to_string_pretty(&tried)?);
    } else {
        println!("{text}");
    }
    done.map(|()| all_well)
}

/// What a group needs beside Tekton's settings; [`Skip`]: it is not to be had here.
async fn prepare(lab: &Lab, group: &Group, installed: &mut Option<Strategy>) -> Result<()> {
    if group.strategy == Strategy::Default {
        lab.needs_kubernetes(33).await?;
    }
    if group.istio {
        istio::prepare(lab).await?;
    }
    if *installed != Some(group.strategy) {
        // What fails here has left it in neither state.
        *installed = None;
        install::install(lab, group.strategy).await?;
        injector::check_order(&lab.client).await?;
        *installed = Some(group.strategy);
    }
    Ok(())
}

/// On stderr: results go to stdout.
fn say(text: &str) {
    eprintln!("{text}");
}

/// What is going on.
struct Board<'a> {
    lab: &'a Lab,
    total: usize,
    running: Mutex<BTreeSet<String>>,
    tried: Mutex<Vec<Tried>>,
}

impl Board<'_> {
    fn running(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tried(&self) -> std::sync::MutexGuard<'_, Vec<Tried>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tick(&self, start: Instant) {
        loop {
            tokio::time::sleep(TICK).await;
            let running: Vec<String> = self.running().iter().cloned().collect();
            let tried = self.tried().len();
            let now = if running.is_empty() { "setting up".to_owned() } else { running.join("; ") };
            say(&format!("… {} s, {tried} of {}: {now}", start.elapsed().as_secs(), self.total));
        }
    }

    async fn attempt(&self, group: &Group, case: &Case) {
        self.running().insert(case.name.clone());
        let start = Instant::now();
        let (outcome, notes) = self.outcome(group, case).await;
        let mut tried = Tried {
            group: group.name,
            name: case.name.clone(),
            seconds: start.elapsed().as_secs_f64(),
            notes,
            outcome,
        };
        if group.disturbing
            && let Err(error) = install::repair(self.lab, group.strategy).await
        {
            tried.outcome = Outcome::Failed(format!("Kickstand does not come back: {error:#}"));
        }
        self.running().remove(&case.name);
        if let Outcome::Failed(why) = &tried.outcome {
            say(&format!("\n=== {}: {}\n{why}\n===\n", group.name, case.name));
        }
        self.done(tried);
    }

    fn skip(&self, group: &Group, case: &Case, why: &str) {
        let outcome = Outcome::Skipped(why.to_owned());
        self.done(Tried { group: group.name, name: case.name.clone(), seconds: 0.0, notes: Vec::new(), outcome });
    }

    fn done(&self, tried: Tried) {
        let mut all = self.tried();
        say(&format!("{:>2}/{} {}", all.len() + 1, self.total, tried.line()));
        all.push(tried);
    }

    async fn outcome(&self, group: &Group, case: &Case) -> (Outcome, Vec<String>) {
        let labels = if group.istio { [istio::INJECTED] } else { [(kickstand::pod::contract::INJECT, "true")] };
        let namespace = match self.lab.namespace_with(&slug(&case.name), &labels).await {
            Ok(namespace) => namespace,
            Err(error) => return (Outcome::Failed(format!("{error:#}")), Vec::new()),
        };
        let scene = Scene::new(self.lab, namespace);
        // A bug in a case must not end the others.
        let done = tokio::time::timeout(LIMIT, std::panic::AssertUnwindSafe((case.test)(&scene)).catch_unwind()).await;
        let outcome = match done {
            Ok(Ok(Ok(()))) => Outcome::Passed,
            Ok(Ok(Err(error))) => match error.downcast::<Skip>() {
                Ok(skip) => Outcome::Skipped(skip.to_string()),
                Err(error) => Outcome::Failed(report::failure(&scene, &format!("{error:#}")).await),
            },
            Ok(Err(_)) => Outcome::Failed("the case itself panicked".to_owned()),
            Err(_) => {
                let why = format!("it did not end within {} s", LIMIT.as_secs());
                Outcome::Failed(report::failure(&scene, &why).await)
            }
        };
        if !(self.lab.options.keep && matches!(outcome, Outcome::Failed(_)))
            && let Err(error) = self.lab.delete_namespace(&scene.namespace).await
        {
            say(&format!("namespace {} is left: {error:#}", scene.namespace));
        }
        (outcome, scene.notes())
    }
}

/// A name's first words, as a namespace may be called.
fn slug(name: &str) -> String {
    let mut slug: String =
        name.chars().map(|it| if it.is_ascii_alphanumeric() { it.to_ascii_lowercase() } else { '-' }).collect();
    slug.truncate(36);
    slug.trim_matches('-').to_owned()
}
