//! `docs/reference.md` is made from the code: this test holds it to that. `UPDATE_DOCS=1 cargo test --test docs` writes
//! it anew.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::fmt::Write as _;

use clap::CommandFactory as _;
use kickstand::config::Cli;
use kickstand::metrics;
use kickstand::pod::contract::Reason;
use kickstand::pod::known::{Known, OnTerm, Role};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference.md");
const SIDECARS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/sidecars.md");
const VALUES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/kickstand/values.yaml");

#[test]
#[allow(clippy::disallowed_methods)]
fn the_reference_says_what_the_code_does() {
    let reference = reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(REFERENCE, &reference).unwrap();
    }
    let written = std::fs::read_to_string(REFERENCE).unwrap_or_default();
    assert!(
        written == reference,
        "docs/reference.md is not what the code says: run `UPDATE_DOCS=1 cargo test --test docs`, and read the difference"
    );
}

/// The table in `docs/sidecars.md`.
#[test]
#[allow(clippy::disallowed_methods)]
fn the_known_sidecars_are_those_of_the_table() {
    const BEGIN: &str = "do not edit -->\n";
    const END: &str = "<!-- end -->";
    let written = std::fs::read_to_string(SIDECARS).unwrap();
    let (before, rest) = written.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let made = format!("{before}{BEGIN}{}{END}{after}", known_sidecars());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(SIDECARS, &made).unwrap();
        return;
    }
    assert!(
        written == made,
        "docs/sidecars.md is not what known-sidecars.json says: run `UPDATE_DOCS=1 cargo test --test docs`"
    );
}

fn known_sidecars() -> String {
    let mut text = "| | container | role | on SIGTERM | native | why |\n|---|---|---|---|---|---|\n".to_owned();
    for row in Known::builtin().rows() {
        let containers: Vec<String> = row.containers.iter().map(|name| format!("`{name}`")).collect();
        let role = match row.role {
            Role::Helper => "helper",
            Role::NetworkProxy => "network proxy",
        };
        let on_term = match (row.ends_by_itself, row.on_term) {
            (true, _) => "left alone",
            (_, OnTerm::ExitsZero) => "exits 0",
            (_, OnTerm::ExitsZeroIfTold) => "exits 0 if told",
            (_, OnTerm::Unknown) => "unknown",
        };
        let native = match (&row.ask, &row.classic) {
            (Some(ask), _) => {
                let set: Vec<String> = ask.set.iter().map(|(key, value)| format!("`{key}: \"{value}\"`")).collect();
                let when = ask.when.as_ref().map_or_else(String::new, |when| format!(", where `{when}` is set"));
                format!("asked by {}{when}", set.join(", "))
            }
            (_, Some(mark)) => format!("none; comes where `{}` is set, and keeps the pod classic", mark.when),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {role} | {on_term} | {native} | {} |",
            row.name,
            containers.join(", "),
            row.why
        );
    }
    text
}

fn reference() -> String {
    let mut text = "# Reference\n\nMade from the code by `UPDATE_DOCS=1 cargo test --test docs`; do not edit.\n\n\
        [Chart values](#chart-values) · [Metrics](#metrics) · [Events](#events) · [Command line](#command-line)\n"
        .to_owned();
    text.push_str("\n## Chart values\n\n| value | default | |\n|---|---|---|\n");
    for (name, default, help) in values(&std::fs::read_to_string(VALUES).unwrap()) {
        let _ = writeln!(text, "| `{name}` | `{default}` | {help} |");
    }
    text.push_str(
        "\n## Metrics\n\nOf both processes, at `/metrics` on the admin port. No label holds a name of a pod, a namespace or \
         an image.\n\n| metric | type | |\n|---|---|---|\n",
    );
    for (name, kind, help) in described_metrics() {
        let _ = writeln!(text, "| `{name}` | {kind} | {help} |");
    }
    text.push_str(
        "\n## Events\n\nOn the pod; what they mean and what to do stands in [operations.md](operations.md#events).\n\n",
    );
    for reason in Reason::ALL {
        let kind = if reason.is_warning() { "Warning" } else { "Normal" };
        let _ = writeln!(text, "- `{}` ({kind})", reason.as_str());
    }
    text.push_str("\n## Command line\n");
    let mut cli = Cli::command();
    for command in cli.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let name = command.get_name().to_owned();
        let mut command = command.clone().term_width(100).bin_name(format!("kickstand {name}"));
        let _ = write!(text, "\n### kickstand {name}\n\n```\n{}```\n", tidy(&command.render_long_help().to_string()));
    }
    text
}

/// Trailing blanks differ with the width of a terminal.
fn tidy(help: &str) -> String {
    help.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

/// Names, kinds and helps, as Prometheus sees them.
fn described_metrics() -> Vec<(String, String, String)> {
    let mut registry = metrics::registry();
    let _ = metrics::webhook::AdmissionMetrics::register(&mut registry);
    let _ = metrics::webhook::ServerMetrics::register(&mut registry);
    let _ = metrics::webhook::TlsMetrics::register(&mut registry);
    let _ = metrics::webhook::LivenessMetrics::register(&mut registry);
    let _ = metrics::controller::Metrics::register(&mut registry);
    let _ = metrics::certificates::CertificateMetrics::register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode_registry(&mut text, &registry).unwrap();
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else { continue };
        let start = format!("# TYPE {name} ");
        let kind = lines.iter().find_map(|line| line.strip_prefix(&start)).unwrap_or("unknown");
        let suffix = if kind == "counter" { "_total" } else { "" };
        found.push((format!("{name}{suffix}"), kind.to_owned(), help.to_owned()));
    }
    found.sort();
    found
}

/// The values that have a `# -- …` above them, with their path and default.
fn values(yaml: &str) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    let mut help: Option<String> = None;
    let mut lines = yaml.lines().peekable();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        if let Some(start) = text.strip_prefix("# -- ") {
            help = Some(start.to_owned());
        } else if let Some(more) = text.strip_prefix('#') {
            if let Some(help) = &mut help {
                *help += " ";
                *help += more.trim();
            }
        } else if let Some((key, value)) = text.split_once(':').filter(|_| !text.starts_with('-')) {
            let indent = line.len() - text.len();
            path.retain(|(other, _)| *other < indent);
            path.push((indent, key.to_owned()));
            if let Some(help) = help.take() {
                let mut value = value.trim().to_owned();
                let mut rest = Vec::new();
                while value.is_empty() || !rest.is_empty() {
                    match lines.peek() {
                        Some(next) if next.len() - next.trim_start().len() > indent && !next.trim().is_empty() => {
                            rest.push(next.trim().trim_start_matches("- ").to_owned());
                            lines.next();
                        }
                        _ => break,
                    }
                }
                if value.is_empty() {
                    value = rest.join(", ");
                }
                let name: Vec<&str> = path.iter().map(|(_, key)| key.as_str()).collect();
                found.push((name.join("."), value, help.replace('|', "\\|")));
            }
        }
    }
    found
}
