//! The house's two rules: imports point down only, and `pod` thinks without hands.
//!
//! Read from the sources' text, so that a stub counts as soon as it imports something. Tests within the sources are free:
//! they stand at a file's end, or in a file or folder of their own named `tests`.
#![allow(clippy::unwrap_used)] // The lint knows helpers of tests only inside of #[test].

use std::fs;
use std::path::{Path, PathBuf};

/// A module may import modules of a smaller number than its own. What is new goes just above the highest that it needs.
const LAYERS: &[(&str, u32)] = &[
    ("main", 7),
    ("app", 6),
    ("config", 5),
    ("admin", 4),
    ("controller", 4),
    ("release", 4),
    ("admission", 3),
    ("leader", 3),
    ("server", 3),
    ("certificates", 2),
    ("effects", 2),
    ("inject", 2),
    ("liveness", 2),
    ("tls", 2),
    ("watch", 2),
    ("doctor", 1),
    ("metrics", 1),
    ("shutdown", 1),
    ("table", 1),
    ("clock", 0),
    ("cluster", 0),
    ("nop", 0), // The program in the image, which is to stay tiny; not pod::nop.
    ("pod", 0),
    ("readiness", 0),
    ("telemetry", 0),
];

/// The crates that `pod` may use: data and its changes. Every other dependency of the crate is out of its reach.
const CRATES_OF_POD: &[&str] = &["jiff", "json-patch", "serde", "serde_json", "strsim", "thiserror"];

/// What `pod` must not use of the standard library and of what every file has in scope.
const NOT_IN_POD: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::process",
    "std::thread",
    "std::time",
    "dbg!",
    "eprint!",
    "eprintln!",
    "print!",
    "println!",
];

#[test]
fn imports_point_down_only() {
    let layer_of = |name: &str| LAYERS.iter().find(|(module, _)| *module == name).map(|(_, layer)| *layer);
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(own) = source.module.first() else { continue };
        let Some(from) = layer_of(own) else {
            wrong.push(format!("{}: `{own}` has no layer: give it one in LAYERS", source.name));
            continue;
        };
        for (line, path) in &source.paths {
            let Some(imported) = source.own_module(path).filter(|imported| imported != own) else { continue };
            // One without a layer is told of by its own file.
            if let Some(to) = layer_of(&imported).filter(|to| *to >= from) {
                wrong.push(format!("{}:{line}: `{own}` (layer {from}) imports `{imported}` (layer {to})", source.name));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\n\nImports point down only. Turn the import around, or move what both need into a module below them; if the \
         import is right and only the number is not, raise the importer's in LAYERS (tests/architecture.rs), and draw it in \
         the map of src/lib.rs.",
        wrong.join("\n")
    );
}

#[test]
fn pod_thinks_without_hands() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let crates: Vec<String> = dependencies(&manifest).filter(|name| !CRATES_OF_POD.contains(name)).map(snake).collect();
    assert!(crates.iter().any(|name| name == "tokio"), "no dependencies were found in Cargo.toml");
    let mut wrong = Vec::new();
    for source in sources().into_iter().filter(|source| source.module.first().is_some_and(|own| own == "pod")) {
        for (line, path) in &source.paths {
            let is_in = |start: &str| path.starts_with(&format!("{start}::"));
            // A crate's name alone is some variable's, most likely.
            if NOT_IN_POD.iter().any(|start| path == start || is_in(start)) || crates.iter().any(|name| is_in(name)) {
                wrong.push(format!("{}:{line}: {path}", source.name));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\n\npod has no client, runtime, clock, environment, file or log: that is what keeps its decisions testable in \
         milliseconds. Take what you need there as an argument, and let a module above fetch it.",
        wrong.join("\n")
    );
}

#[test]
fn the_rules_see_what_they_are_about() {
    let code = scrubbed(
        r#"
        use crate::{app::{self, Thing}, server as s}; // use crate::comment;
        /* use crate::block; */ fn a<'a>(c: &'a str) { let _ = ('"', "crate::text", r"crate::raw"); super::tls::go(); }
        use std::{env, time::Duration};
        fn b() { println!("x"); if a != b { kube::Client::new() } }
        "#,
    );
    let paths: Vec<String> = paths(&code).into_iter().map(|(_, path)| path).collect();
    for seen in [
        "crate::app::self",
        "crate::app::Thing",
        "crate::server",
        "super::tls::go",
        "std::env",
        "std::time::Duration",
        "println!",
    ] {
        assert!(paths.iter().any(|path| path == seen), "{seen} is not among {paths:?}");
    }
    assert!(paths.iter().any(|path| path == "kube::Client::new"));
    assert!(
        !paths.iter().any(|path| ["comment", "block", "text", "raw"].iter().any(|hidden| path.contains(hidden))),
        "{paths:?}"
    );
}

/// A source file without its comments, strings and tests.
struct Source {
    /// For messages.
    name: String,
    /// Where it stands in its crate: `["pod", "mutate"]`.
    module: Vec<String>,
    /// Every path in it, with its line.
    paths: Vec<(usize, String)>,
}

impl Source {
    /// The module at the top of our crate that a path is of, if it is ours.
    fn own_module(&self, path: &str) -> Option<String> {
        let parts: Vec<&str> = path.split("::").collect();
        let ups = parts.iter().take_while(|part| **part == "super").count();
        let (above, rest) = match parts[0] {
            "crate" | "kickstand" => (&[][..], &parts[1..]),
            _ if ups > 0 => (&self.module[..self.module.len().saturating_sub(ups)], &parts[ups..]),
            _ => return None,
        };
        // A name of ours begins small; `crate::Error` would be of lib.rs itself.
        let top = above.first().map(String::as_str).or_else(|| rest.first().copied());
        top.filter(|name| name.starts_with(char::is_lowercase)).map(str::to_owned)
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut files = Vec::new();
    collect(&root().join("src"), &mut files);
    let sources: Vec<Source> = files.iter().map(|file| read(file)).collect();
    assert!(sources.iter().any(|source| source.module == ["pod", "mutate"]), "src/pod/mutate.rs was not found");
    sources
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
}

fn read(file: &Path) -> Source {
    let name = file.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
    let text = fs::read_to_string(file).unwrap();
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some((before, behind)) = rest.split_once("#[cfg(test)]") {
        code.push_str(before);
        let item = behind.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#[")).unwrap_or("");
        assert!(
            item.trim_start_matches("pub").trim_start_matches(|c| c != 'm').starts_with("mod "),
            "{name}: #[cfg(test)] is for a module of tests: in another file, or at this one's end, since what follows is \
             not held to the house's rules"
        );
        // With a body, it is the last item.
        rest = if item.ends_with(';') { behind } else { "" };
    }
    code.push_str(rest);
    let module = name.trim_start_matches("src/").trim_start_matches("bin/").trim_end_matches(".rs");
    let module = module.split('/').filter(|part| *part != "mod" && *part != "lib").map(str::to_owned).collect();
    Source { name, module, paths: paths(&scrubbed(&code)) }
}

/// Code with its comments and literals blanked out; lines stay where they are.
fn scrubbed(code: &str) -> String {
    let mut scrubbed = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(next) = rest.chars().next() {
        let length = literal_or_comment(rest);
        if length == 0 {
            scrubbed.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            scrubbed.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    scrubbed
}

/// The length of the literal or comment that the code begins with, or 0.
fn literal_or_comment(code: &str) -> usize {
    let until = |end: &str, from: usize| code[from..].find(end).map_or(code.len(), |at| from + at + end.len());
    if code.starts_with("//") {
        return code.find('\n').unwrap_or(code.len());
    }
    if code.starts_with("/*") {
        return until("*/", 2);
    }
    if let Some(raw) = code.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            return until(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
        }
    }
    if let Some(string) = code.strip_prefix('"') {
        let mut escaped = false;
        let end = string.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        return end.map_or(code.len(), |end| end + 2);
    }
    // A character; a lifetime has no quote behind it.
    if let Some(character) = code.strip_prefix('\'') {
        if character.starts_with('\\') {
            return until("'", 3);
        }
        let length = character.chars().next().map_or(0, char::len_utf8);
        if character[length..].starts_with('\'') {
            return length + 2;
        }
    }
    0
}

/// Every path in scrubbed code, groups in braces written out, and every macro that is called by its bare name.
fn paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    let mut at = 0;
    while let Some(next) = code[at..].chars().next() {
        if is_name(next) {
            let line = code[..at].matches('\n').count() + 1;
            at = path(code, at, "", &mut |path| paths.push((line, path)));
        } else {
            at += next.len_utf8();
        }
    }
    paths
}

/// Reads one path, and returns where it ends.
fn path(code: &str, at: usize, start: &str, found: &mut impl FnMut(String)) -> usize {
    let name = code[at..].find(|c| !is_name(c)).map_or(code.len(), |length| at + length);
    let whole = format!("{start}{}", &code[at..name]);
    let rest = &code[name..];
    let Some(behind) = rest.strip_prefix("::") else {
        found(if rest.starts_with('!') && !rest.starts_with("!=") { whole + "!" } else { whole });
        return name;
    };
    let start = whole.clone() + "::";
    let mut at = name + 2;
    if behind.starts_with(is_name) {
        return path(code, at, &start, found);
    }
    if !behind.starts_with('{') {
        found(whole);
        return at;
    }
    at += 1;
    while let Some(next) = code[at..].chars().next() {
        if next == '}' {
            return at + 1;
        }
        if is_name(next) {
            at = path(code, at, &start, found);
            // What it is called here does not matter.
            if let Some(name) = code[at..].strip_prefix(" as ") {
                at = code.len() - name.trim_start_matches(is_name).len();
            }
        } else {
            if next == '*' {
                found(whole.clone());
            }
            at += next.len_utf8();
        }
    }
    at
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = ").map(|(name, _)| name))
        .filter(|name| !name.starts_with('#'))
}

fn snake(name: &str) -> String {
    name.replace('-', "_")
}
