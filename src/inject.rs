//! `kickstand inject`: the webhook's decision on a Pod in a file, without a cluster.
//!
//! The very function that the webhook calls, so that what it would do can be seen, reviewed and tested beforehand. A Pod
//! goes out as it came in, field for field and in the same order, save for the patch. (YAML comments are lost.)

use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::slice;

use json_patch::{Patch, PatchOperation};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::pod::ask::ask;
use crate::pod::gate;
use crate::pod::known::Known;
use crate::pod::model::Pod;
use crate::pod::mutate::{Decision, Mutation, Options, mutate};
use crate::pod::native::Off;
use crate::table::known_sidecars;

/// Show what the webhook makes of a Pod, without a cluster
///
/// Reads Pods (YAML or JSON, one or many, also a List of them) and writes them as the webhook would have them created.
/// Warnings, and the reason where a Pod is left as it is, go to standard error.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct InjectArgs {
    /// File with Pods in YAML or JSON; "-" reads standard input
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// What to write: the Pods in one of two formats, or a JSON Patch for each, one a line
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub output: Output,
    /// Decide as the webhook does while it knows no live controller
    #[arg(long)]
    pub no_controller: bool,
    /// The cluster can run native sidecars (every node and the API server ≥ 1.33): shows what both calls of the webhook
    /// make of the Pod, the one before the injectors too
    #[arg(long)]
    pub native: bool,
    /// A table of sidecars (JSON) that comes before the built-in one
    #[arg(long, value_name = "FILE", value_parser = known_sidecars)]
    pub known_sidecars: Option<Known>,
}

const EXAMPLES: &str = "\
Examples:
  # What would the webhook change of this TaskRun's pod?
  kubectl get pod build-pod -o yaml > pod.yaml
  kickstand inject -f pod.yaml | diff pod.yaml -

  # The same as a JSON Patch ([] = nothing), and why
  kubectl get pod build-pod -o json | kickstand inject -f - -o patch";

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Pods, with `---` between two.
    #[default]
    Yaml,
    /// Pods, one after another.
    Json,
    /// JSON Patches, one a line.
    Patch,
}

/// Why there is no output: the input, or where it came from or goes to. Its text says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {from}: {source}\n{}", hint(source))]
    Read {
        /// The file, or standard input.
        from: String,
        /// Why.
        source: io::Error,
    },
    /// No text.
    #[error("{from} is not UTF-8: byte {at} is {byte:#04x}\nSave it as UTF-8 and try again.")]
    NotUtf8 {
        /// The file, or standard input.
        from: String,
        /// The first byte that is not.
        at: usize,
        /// That byte.
        byte: u8,
    },
    /// Nothing in it.
    #[error("{0} holds no Pod\n{NEXT}")]
    Empty(String),
    /// Neither YAML nor JSON.
    #[error("document {document} of {from} is not {format}: {why}\n{}", repair(why))]
    Syntax {
        /// The file, or standard input.
        from: String,
        /// Counted from 1, without empty ones.
        document: usize,
        /// What it was read as.
        format: &'static str,
        /// The parser's words, with line and column.
        why: String,
    },
    /// Something else than a Pod.
    #[error("{place} is {what}, not a Pod\n{NEXT}")]
    NotAPod {
        /// Which document.
        place: Place,
        /// What it is.
        what: String,
    },
    /// A field of another type than Kubernetes gives it.
    #[error("{place}: field {field}: {why}\nCorrect that field: the API server would refuse this Pod too.")]
    Field {
        /// Which document.
        place: Place,
        /// The path to the field, such as `.spec.containers[0].args[2]`.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// A Pod that cannot be written, or be patched. (A mistake of ours.)
    #[error("{place}: {why}\nPlease report this as a bug of kickstand, with the Pod.")]
    Internal {
        /// Which document.
        place: Place,
        /// What went wrong.
        why: String,
    },
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[source] io::Error),
}

const NEXT: &str = "Give it the Pod of a TaskRun, such as `kubectl get pod NAME -o yaml` prints.";

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => "Check the name given to -f, or use -f - to read standard input.",
        _ => "Check that it is a file that you may read.",
    }
}

fn repair(why: &str) -> &'static str {
    if why.contains("duplicate") {
        "Remove one of the two: which one holds is up to whoever reads it."
    } else {
        "Correct it there. Was the file cut off?"
    }
}

/// Where in the input a Pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    from: String,
    document: usize,
    item: Option<usize>,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "document {}", self.document)?;
        if let Some(item) = self.item {
            write!(f, ", item {item}")?;
        }
        write!(f, " of {}", self.from)
    }
}

/// Reads the Pods that `args` names, and writes what becomes of them; on an error, nothing.
///
/// # Errors
/// If the input cannot be read, or anything in it is no Pod: the caller should exit with 2.
pub fn run(args: &InjectArgs, stdin: impl Read, mut stdout: impl Write, mut stderr: impl Write) -> Result<(), Error> {
    let (from, text) = read(&args.filename, stdin)?;
    let mut pods = Vec::new();
    for (document, value) in documents(&from, &text)?.into_iter().enumerate() {
        unpack(Place { from: from.clone(), document: document + 1, item: None }, value, &mut pods)?;
    }
    if pods.is_empty() {
        return Err(Error::Empty(from));
    }
    let options = Options {
        controller_alive: !args.no_controller,
        gates_refused: false,
        native: if args.native { Ok(()) } else { Err(Off::Unknown) },
        skip_tekton_wait: true,
        known: args.known_sidecars.as_ref().unwrap_or_else(|| Known::builtin()),
    };
    let (mut out, mut notes) = (String::new(), String::new());
    for (at, (place, raw)) in pods.into_iter().enumerate() {
        let mutation = both_calls(&place, &raw, &options)?;
        note(&place, &raw, &mutation, &mut notes);
        if at > 0 && args.output == Output::Yaml {
            out.push_str("---\n");
        }
        out.push_str(&rendered(&place, raw, &mutation, args.output)?);
    }
    for (stream, text) in [(&mut stderr as &mut dyn Write, notes), (&mut stdout, out)] {
        match stream.write_all(text.as_bytes()).and_then(|()| stream.flush()) {
            // Whoever reads us has seen enough.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(Error::Write(error)),
            _ => {}
        }
    }
    Ok(())
}

/// What the early call and the late one make of a Pod, with no injector in between.
fn both_calls(place: &Place, raw: &Value, options: &Options<'_>) -> Result<Mutation, Error> {
    let asking = ask(raw, options).map_err(|error| wrong_field(place, raw, &error))?;
    let mut asked = raw.clone();
    json_patch::patch(&mut asked, &asking.patch)
        .map_err(|error| Error::Internal { place: place.clone(), why: error.to_string() })?;
    let mut mutation = mutate(&asked, options).map_err(|error| wrong_field(place, raw, &error))?;
    mutation.patch.0.splice(0..0, asking.patch.0);
    Ok(mutation)
}

fn read(filename: &Path, mut stdin: impl Read) -> Result<(String, String), Error> {
    let mut bytes = Vec::new();
    let (from, result) = if filename == Path::new("-") {
        ("standard input".to_owned(), stdin.read_to_end(&mut bytes).map(|_| ()))
    } else {
        (filename.display().to_string(), fs::read(filename).map(|read| bytes = read))
    };
    if let Err(source) = result {
        return Err(Error::Read { from, source });
    }
    match String::from_utf8(bytes) {
        // A mark that some editors put in front.
        Ok(text) => Ok((from, text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            Err(Error::NotUtf8 { from, at, byte: error.as_bytes()[at] })
        }
    }
}

/// The documents of a text: several JSON objects one after another, or a stream of YAML, which JSON may be part of.
fn documents(from: &str, text: &str) -> Result<Vec<Value>, Error> {
    if !text.trim_start().starts_with('{') {
        return yaml(from, text);
    }
    // What begins like JSON can still be YAML (`{…}` without quotes, or JSON between two `---`). If it is neither, it was
    // meant to be JSON.
    json(from, text).or_else(|error| yaml(from, text).map_err(|_| error))
}

fn json(from: &str, text: &str) -> Result<Vec<Value>, Error> {
    let mut documents = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter() {
        match document {
            Ok(Strict(value)) => documents.push(value),
            Err(error) => {
                let (from, document, why) = (from.to_owned(), documents.len() + 1, error.to_string());
                return Err(Error::Syntax { from, document, format: "JSON", why });
            }
        }
    }
    Ok(documents)
}

fn yaml(from: &str, text: &str) -> Result<Vec<Value>, Error> {
    // As kubectl reads it: `defaultMode: 0644` is octal, and `on` and `yes` are booleans.
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let mut documents = Vec::new();
    for document in serde_saphyr::read_with_options(&mut text.as_bytes(), options) {
        match document {
            Ok(Strict(value)) => documents.push(value),
            Err(error) => {
                let why = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
                let (from, document) = (from.to_owned(), documents.len() + 1);
                return Err(Error::Syntax { from, document, format: "YAML", why });
            }
        }
    }
    Ok(documents)
}

/// A document's Pods: itself, or a List's items.
fn unpack(place: Place, value: Value, pods: &mut Vec<(Place, Value)>) -> Result<(), Error> {
    let Value::Object(mut fields) = value else {
        let what = match value {
            Value::Array(_) => "a sequence",
            Value::String(_) => "a string",
            Value::Number(_) => "a number",
            Value::Bool(_) => "a boolean",
            Value::Null | Value::Object(_) => "nothing",
        };
        return Err(Error::NotAPod { place, what: what.to_owned() });
    };
    let kind = match fields.get("kind") {
        Some(Value::String(kind)) => kind.clone(),
        Some(_) => return Err(Error::NotAPod { place, what: "of a kind that is no string".to_owned() }),
        None => return Err(Error::NotAPod { place, what: "without a kind".to_owned() }),
    };
    let version = fields.get("apiVersion").cloned().unwrap_or_default();
    match (kind.as_str(), version.as_str()) {
        ("Pod", Some("v1")) => {
            pods.push((place, Value::Object(fields)));
            Ok(())
        }
        ("List" | "PodList", Some("v1")) if place.item.is_none() => {
            let items = match fields.shift_remove("items") {
                Some(Value::Array(items)) => items,
                None | Some(Value::Null) => Vec::new(),
                Some(_) => {
                    let (field, why) = (".items".to_owned(), "it is not a sequence".to_owned());
                    return Err(Error::Field { place, field, why });
                }
            };
            for (at, mut item) in items.into_iter().enumerate() {
                // The API server leaves both out in a PodList.
                if let (Some(item), "PodList") = (item.as_object_mut(), kind.as_str()) {
                    for (at, (key, value)) in [("apiVersion", "v1"), ("kind", "Pod")].into_iter().enumerate() {
                        if !item.contains_key(key) {
                            item.shift_insert(at, key.to_owned(), value.into());
                        }
                    }
                }
                unpack(Place { item: Some(at + 1), ..place.clone() }, item, pods)?;
            }
            Ok(())
        }
        ("Pod", version) => {
            let version =
                version.map_or_else(|| "without an apiVersion".to_owned(), |it| format!("of apiVersion {it}"));
            Err(Error::NotAPod { place, what: format!("a Pod {version} instead of v1") })
        }
        (kind, _) => {
            let article = if kind.starts_with(['A', 'E', 'I', 'O', 'U']) { "an" } else { "a" };
            Err(Error::NotAPod { place, what: format!("{article} {kind}") })
        }
    }
}

/// What a person should hear of a Pod: warnings as the API server would print them, and why it is not gated.
fn note(place: &Place, raw: &Value, mutation: &Mutation, notes: &mut String) {
    let metadata = &raw["metadata"];
    let name = metadata["name"].as_str().or(metadata["generateName"].as_str()).unwrap_or("without a name");
    for warning in &mutation.warnings {
        let _ = writeln!(notes, "Warning: {place}: Pod {name}: {warning}");
    }
    let _ = match &mutation.decision {
        Decision::Ungated(why) if why.is_silent() => writeln!(notes, "{place}: Pod {name} is not gated: {why}"),
        Decision::Gated(waits_for) if Pod::from_raw(raw).is_ok_and(|pod| gate::is_gated(&pod)) => {
            writeln!(notes, "{place}: Pod {name} is gated already, waits for {}", waits_for.join(", "))
        }
        Decision::Gated(_) | Decision::Ungated(_) => Ok(()),
    };
}

fn rendered(place: &Place, mut raw: Value, mutation: &Mutation, output: Output) -> Result<String, Error> {
    let internal = |why: String| Error::Internal { place: place.clone(), why };
    if output == Output::Patch {
        return Ok(format!("{}\n", json!(mutation.patch)));
    }
    apply(&mut raw, &mutation.patch).map_err(|error| internal(error.to_string()))?;
    match output {
        Output::Json => Ok(format!("{raw:#}\n")),
        Output::Yaml | Output::Patch => {
            // Strings that YAML 1.1 would read as something else are quoted: kubectl still speaks it. Long lines are left
            // long, since arguments are easier to compare so.
            let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
            serde_saphyr::to_string_with_options(&Yaml(&raw), options).map_err(|error| internal(error.to_string()))
        }
    }
}

/// Applies a patch. What is removed from an object leaves the order of the rest alone, which `json_patch` does not see to.
fn apply(raw: &mut Value, patch: &Patch) -> Result<(), json_patch::PatchError> {
    for operation in &patch.0 {
        if let PatchOperation::Remove(remove) = operation
            && let Some((parent, key)) = remove.path.split_back()
            && let Some(Value::Object(fields)) = raw.pointer_mut(parent.as_str())
        {
            fields.shift_remove(key.decoded().as_ref());
        } else {
            json_patch::patch(raw, slice::from_ref(operation))?;
        }
    }
    Ok(())
}

/// A value as YAML that kubectl's reader takes, too.
struct Yaml<'a>(&'a Value);

impl Serialize for Yaml<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(fields) => serializer.collect_map(fields.iter().map(|(key, value)| (key, Yaml(value)))),
            Value::Array(items) => serializer.collect_seq(items.iter().map(Yaml)),
            // In a block, kubectl would take a tab in front for a mistaken indentation.
            Value::String(text)
                if text.contains('\n') && text.trim_start_matches('\n').starts_with(char::is_whitespace) =>
            {
                serde_saphyr::DoubleQuoted(text).serialize(serializer)
            }
            other => other.serialize(serializer),
        }
    }
}

/// Names the field that keeps a Pod from being read.
fn wrong_field(place: &Place, raw: &Value, error: &serde_json::Error) -> Error {
    let mut field = String::new();
    // The Pod with nothing in it but what leads to the field.
    let mut alone = raw.clone();
    let mut path: Vec<Step> = Vec::new();
    while let Some((step, narrower)) = narrowed(&alone, &path) {
        let _ = match &step {
            Step::Key(key) if key.chars().all(|c| c.is_ascii_alphanumeric()) => write!(field, ".{key}"),
            Step::Key(key) => write!(field, "[{key:?}]"),
            Step::Item { was } => write!(field, "[{was}]"),
        };
        path.push(step);
        alone = narrower;
    }
    let why = Pod::from_raw(&alone).map_or_else(|error| error.to_string(), |_| error.to_string());
    Error::Field { place: place.clone(), field, why }
}

enum Step {
    Key(String),
    Item { was: usize },
}

/// The Pod with all but one child of the value at `path` taken away, such that it still cannot be read.
fn narrowed(alone: &Value, path: &[Step]) -> Option<(Step, Value)> {
    let pointer: String = path
        .iter()
        .map(|step| match step {
            Step::Key(key) => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            // The only one left.
            Step::Item { .. } => "/0".to_owned(),
        })
        .collect();
    let still_wrong = |value: Value| {
        let mut narrower = alone.clone();
        *narrower.pointer_mut(&pointer)? = value;
        Pod::from_raw(&narrower).is_err().then_some(narrower)
    };
    match alone.pointer(&pointer)? {
        Value::Object(fields) if still_wrong(json!({})).is_none() => fields.iter().find_map(|(key, value)| {
            let only = Map::from_iter([(key.clone(), value.clone())]);
            Some((Step::Key(key.clone()), still_wrong(only.into())?))
        }),
        Value::Array(items) if still_wrong(json!([])).is_none() => {
            items.iter().enumerate().find_map(|(was, value)| Some((Step::Item { was }, still_wrong(json!([value]))?)))
        }
        _ => None,
    }
}

/// A JSON value in which no key stands twice: of two, `serde_json` would silently keep the last.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if fields.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate key \"{key}\"")));
            }
            let Strict(value) = entries.next_value()?;
            fields.insert(key, value);
        }
        Ok(fields.into())
    }
}
