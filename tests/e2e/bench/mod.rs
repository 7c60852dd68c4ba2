//! Numbers, each beside a peer measured in the same run: Tekton's own waiting and stopping, and the floor (a bare client
//! that does the same at once, whatever the verdict). Printed, never asserted.

pub(crate) mod floor;
mod latency;
mod memory;
mod strategies;
mod table;
mod webhook;

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::cli::{BenchArgs, Part};
use crate::harness::case::Strategy;
use crate::harness::install;
use crate::harness::lab::Lab;

pub(crate) async fn run(lab: &Lab, args: &BenchArgs) -> Result<bool> {
    let wanted = |part| args.only.is_empty() || args.only.contains(&part);
    let mut all = Map::new();
    if wanted(Part::Strategies) {
        install::install(lab, Strategy::Default).await?;
        all.insert("strategies".to_owned(), show(lab, strategies::measure(lab, args.runs).await?)?);
    }
    if args.only == [Part::Strategies] {
        return print(lab, all);
    }
    install::install(lab, Strategy::Classic).await?;
    if wanted(Part::Latency) {
        all.insert("latency".to_owned(), show(lab, latency::measure(lab, args.runs).await?)?);
    }
    if wanted(Part::Webhook) {
        all.insert("webhook".to_owned(), show(lab, webhook::measure(lab, args.reviews).await?)?);
    }
    if wanted(Part::Memory) {
        all.insert("memory".to_owned(), show(lab, memory::measure(lab, args.pods).await?)?);
    }
    print(lab, all)
}

fn print(lab: &Lab, all: Map<String, Value>) -> Result<bool> {
    if lab.is_quiet() {
        println!("{}", serde_json::to_string_pretty(&Value::Object(all))?);
    }
    Ok(true)
}

/// Prints each part as soon as it is there; in JSON all comes at once.
fn show(lab: &Lab, part: table::Part) -> Result<Value> {
    if !lab.is_quiet() {
        println!("\n## {}\n\n{}", part.title, part.markdown);
    }
    Ok(json!({ "title": part.title, "raw": serde_json::to_value(part.raw)? }))
}

/// A sign of life.
fn say(text: &str) {
    eprintln!("{text}");
}
