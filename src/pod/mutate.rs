//! The webhook's decision: a Pod at CREATE becomes a JSON Patch, or stays as it is, for a reason.
//!
//! The pod is read through [`Pod`], and changed by explicit operations on the raw object, so that fields this build does
//! not know survive. Called twice, in any order with other webhooks: a second call on our own output patches nothing
//! unless the pod has changed.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Value, json};

use super::contract::{GATE, GATE_FILE, GATE_VOLUME, INJECT, INJECTED, ORIGINAL_IMAGES, READY, Settings, opted_out};
use super::entrypoint::{self, Change};
use super::gate;
use super::model::{Pod, Status};
use super::sidecars;
use super::slips;
use super::tekton::{self, NotOurs};

/// Init containers included. No node runs a pod of so many; one that is made to keep us busy is not worth the time.
pub const MOST_CONTAINERS: usize = 256;

/// What the webhook knows beside the pod.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A controller was seen alive: somebody will open the gate.
    pub controller_alive: bool,
    /// It could not open gates in the pod's namespace lately.
    pub gates_refused: bool,
}

/// What becomes of a pod, and what is to be said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mutation {
    /// The operations, each in need of the ones before it; empty = leave the pod alone.
    pub patch: Patch,
    /// What was decided.
    pub decision: Decision,
    /// For the admission response: what the user should know.
    pub warnings: Vec<String>,
}

impl Mutation {
    /// Nothing is changed, and nothing is to be said.
    fn untouched(why: Ungated) -> Self {
        Self { patch: Patch(Vec::new()), decision: Decision::Ungated(why), warnings: Vec::new() }
    }
}

/// What was decided of the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The first step waits for these.
    Gated(Vec<String>),
    /// It does not.
    Ungated(Ungated),
}

/// Why a pod's first step is not held by us.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ungated {
    /// Not the pod of a TaskRun.
    #[error("not the pod of a TaskRun: {0}")]
    NotOurs(#[from] NotOurs),
    /// The pod's label `kickstand.dev/inject` is `"false"`.
    #[error("opted out by the pod's label {INJECT}: \"false\"")]
    OptedOut,
    /// The annotation `kickstand.dev/gate` is `"false"`.
    #[error("annotated {GATE}: \"false\"")]
    GateOff,
    /// No sidecar to wait for.
    #[error("no sidecar to wait for")]
    NobodyToAwait,
    /// No step posts the first file.
    #[error("no step that runs first was found")]
    NoFirstStep,
    /// Nobody would open the gate.
    #[error("no live controller is known, which would open the gate")]
    NoController,
    /// A gate would most likely stay shut.
    #[error(
        "the API server refused to have gates opened in this namespace (by its permissions or a policy; see the Events KickstandStopRefused there)"
    )]
    GatesRefused,
    /// More than any pod of Tekton's.
    #[error("it has {0} containers, and pods of more than {MOST_CONTAINERS} are left as they are")]
    TooManyContainers(usize),
    /// The pod has a volume or mount of the gate's name that is not the gate.
    #[error("its {0} is in the gate's way")]
    InTheWay(&'static str),
    /// The first step's arguments.
    #[error("{0}")]
    Entrypoint(#[from] entrypoint::Unknown),
}

impl Ungated {
    /// Nothing that anybody has to hear of: the pod is none of ours, or it was asked for.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        matches!(self, Self::NotOurs(_) | Self::OptedOut | Self::GateOff | Self::NobodyToAwait)
    }

    /// For a metric's label: a closed set.
    #[must_use]
    pub fn as_label(&self) -> &'static str {
        match self {
            Self::NotOurs(_) => "not_a_task_run",
            Self::OptedOut => "opted_out",
            Self::GateOff => "gate_off",
            Self::NobodyToAwait => "no_sidecar",
            Self::NoFirstStep => "no_first_step",
            Self::NoController => "no_controller",
            Self::GatesRefused => "gates_refused",
            Self::TooManyContainers(_) => "too_many_containers",
            Self::InTheWay(_) => "in_the_way",
            Self::Entrypoint(_) => "unknown_entrypoint",
        }
    }
}

/// Decides what becomes of a pod that is being created.
///
/// # Errors
/// If `raw` is no Pod: a field that is read has another type than Kubernetes gives it.
pub fn mutate(raw: &Value, options: Options) -> Result<Mutation, serde_json::Error> {
    let mut pod = Pod::from_raw(raw)?;
    // A pod that is being created has none, whatever its author wrote there.
    pod.status = Status::default();
    if let Err(not_ours) = tekton::eligible(&pod) {
        return Ok(Mutation::untouched(not_ours.into()));
    }
    if opted_out(&pod) {
        // Usually we are not even called for it.
        return Ok(Mutation::untouched(Ungated::OptedOut));
    }
    let (settings, malformed) = Settings::of(&pod);
    let mut edit = Edit { raw, operations: Vec::new() };
    let mut warnings: Vec<String> = malformed.iter().map(|malformed| format!("kickstand: {malformed}")).collect();
    warnings.extend(slips::of(&pod, &settings).iter().map(|slip| format!("kickstand: {slip}")));

    // Ours to set, and never at CREATE: a preset one would open the gate at once, or claim that a sidecar was stopped.
    for preset in [READY, ORIGINAL_IMAGES] {
        edit.remove_annotation(&pod, preset);
    }
    let decision = match hold(&pod, &settings, options, &mut edit) {
        Ok(waits_for) => Decision::Gated(waits_for),
        Err(why) => {
            if !why.is_silent() {
                warnings.push(format!("kickstand: the first step does not wait for its sidecars: {why}"));
            }
            Decision::Ungated(why)
        }
    };
    Ok(Mutation { patch: Patch(edit.operations), decision, warnings })
}

/// Adds the gate, as far as it is not there yet.
fn hold(pod: &Pod, settings: &Settings, options: Options, edit: &mut Edit) -> Result<Vec<String>, Ungated> {
    if !settings.gate {
        return Err(Ungated::GateOff);
    }
    let containers = pod.spec.containers.len() + pod.spec.init_containers.len();
    if containers > MOST_CONTAINERS {
        return Err(Ungated::TooManyContainers(containers));
    }
    let waits_for: Vec<String> = sidecars::awaited(pod, settings).map(|sidecar| sidecar.name().to_owned()).collect();
    if waits_for.is_empty() {
        return Err(Ungated::NobodyToAwait);
    }
    let step_at = tekton::first_step(pod).ok_or(Ungated::NoFirstStep)?;
    let step = &pod.spec.containers[step_at];
    let change = entrypoint::wait_for_gate(&step.args)?;
    // A gate of an earlier call stays, and is kept whole: the controller that was alive then is most likely alive still.
    if !options.controller_alive && change.is_some() {
        return Err(Ungated::NoController);
    }
    if options.gates_refused && change.is_some() {
        return Err(Ungated::GatesRefused);
    }
    let volume = pod.spec.volumes.iter().find(|volume| volume.name == GATE_VOLUME);
    if volume.is_some_and(|volume| !gate::is_ours(volume)) {
        return Err(Ungated::InTheWay("volume kickstand-gate"));
    }
    if step.volume_mounts.iter().any(gate::is_in_the_way) {
        return Err(Ungated::InTheWay("mount at /kickstand"));
    }

    if volume.is_none() {
        edit.push(&["spec".into(), "volumes".into()], gate::volume());
    }
    let container = ["spec".into(), "containers".into(), step_at.to_string()];
    if !step.volume_mounts.iter().any(gate::is_our_mount) {
        edit.push(&[&container[..], &["volumeMounts".into()]].concat(), gate::mount());
    }
    match change {
        Some(Change::Replace(at, argument)) => {
            edit.replace(&[&container[..], &["args".into(), at.to_string()]].concat(), argument.into());
        }
        Some(Change::Prepend(arguments)) => {
            for (at, argument) in arguments.into_iter().enumerate() {
                edit.add(&[&container[..], &["args".into(), at.to_string()]].concat(), argument.into());
            }
        }
        None => {}
    }
    let note = json!({ "version": env!("CARGO_PKG_VERSION"), "strategy": "classic", "gate": GATE_FILE, "waitsFor": waits_for });
    edit.set_annotation(pod, INJECTED, &note.to_string());
    Ok(waits_for)
}

/// Operations on a raw object, in order. What is added where nothing stands yet brings its parent along.
struct Edit<'a> {
    raw: &'a Value,
    operations: Vec<PatchOperation>,
}

impl Edit<'_> {
    /// Appends to an array, which is made if it is absent.
    fn push(&mut self, array: &[String], value: Value) {
        if self.stands(array).is_some_and(Value::is_array) {
            self.add(&[array, &["-".into()]].concat(), value);
        } else {
            self.add(array, Value::Array(vec![value]));
        }
    }

    fn set_annotation(&mut self, pod: &Pod, key: &str, value: &str) {
        if pod.annotation(key) == Some(value) {
            return;
        }
        let map = ["metadata".to_owned(), "annotations".to_owned()];
        if !self.stands(&map).is_some_and(Value::is_object) {
            self.add(&map, json!({}));
        }
        self.add(&[&map[..], &[key.to_owned()]].concat(), value.into());
    }

    fn remove_annotation(&mut self, pod: &Pod, key: &str) {
        if pod.annotation(key).is_some() {
            let path = pointer(&["metadata".into(), "annotations".into(), key.into()]);
            self.operations.push(PatchOperation::Remove(RemoveOperation { path }));
        }
    }

    fn add(&mut self, path: &[String], value: Value) {
        self.operations.push(PatchOperation::Add(AddOperation { path: pointer(path), value }));
    }

    fn replace(&mut self, path: &[String], value: Value) {
        self.operations.push(PatchOperation::Replace(ReplaceOperation { path: pointer(path), value }));
    }

    fn stands(&self, path: &[String]) -> Option<&Value> {
        self.raw.pointer(pointer(path).as_str())
    }
}

fn pointer(tokens: &[String]) -> PointerBuf {
    PointerBuf::from_tokens(tokens)
}

#[cfg(test)]
mod tests;
