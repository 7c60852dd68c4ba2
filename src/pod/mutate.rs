//! The webhook's decision: a Pod at CREATE becomes a JSON Patch, or stays as it is, for a reason.
//!
//! The pod is read through [`Pod`], and changed by explicit operations on the raw object, so that fields this build does
//! not know survive. Called twice, in any order with other webhooks: a second call on our own output patches nothing
//! unless the pod has changed.

use json_patch::Patch;
use serde_json::{Value, json};

use super::contract::{
    self, GATE, GATE_FILE, GATE_VOLUME, INJECT, INJECTED, NUDGED, ORIGINAL_IMAGES, READY, Settings, opted_out,
};
use super::edit::Edit;
use super::entrypoint;
use super::gate;
use super::known::Known;
use super::model::Pod;
use super::native::{self, Off, Stays, TektonWait};
use super::sidecars;
use super::slips;
use super::tekton::{self, NotOurs};

/// Init containers included. No node runs a pod of so many; one that is made to keep us busy is not worth the time.
pub const MOST_CONTAINERS: usize = 256;
/// How a warning begins that says why the first step is not held; the reason follows.
pub const NOT_HELD: &str = "kickstand: the first step does not wait for its sidecars: ";
/// How a warning begins that says why sidecars stay classic where native ones were asked for; the reason follows.
pub const STAY_CLASSIC: &str = "kickstand: the declared sidecars stay classic: ";

/// What the webhook knows beside the pod.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// A controller was seen alive: somebody will open the gate.
    pub controller_alive: bool,
    /// The cluster, and the pod's namespace, can run native sidecars.
    pub native: Result<(), Off>,
    /// Tekton's own wait goes where no classic sidecar is left.
    pub skip_tekton_wait: bool,
    /// The table of known sidecars.
    pub known: &'a Known,
    /// It could not open gates in the pod's namespace lately.
    pub gates_refused: bool,
}

/// What becomes of a pod, and what is to be said about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mutation {
    /// The operations, each in need of the ones before it; empty = leave the pod alone.
    pub patch: Patch,
    /// What was decided of the gate.
    pub decision: Decision,
    /// Declared sidecars that became native ones, or why none did.
    pub moved: Result<Vec<String>, Stays>,
    /// Sidecars that were brought back, since another webhook took their `restartPolicy` away.
    pub brought_back: Vec<String>,
    /// What became of Tekton's own wait.
    pub tekton_wait: TektonWait,
    /// For the admission response: what the user should know.
    pub warnings: Vec<String>,
}

impl Mutation {
    /// Nothing is changed, and nothing is to be said.
    fn untouched(why: Ungated) -> Self {
        Self {
            patch: Patch(Vec::new()),
            decision: Decision::Ungated(why),
            moved: Ok(Vec::new()),
            brought_back: Vec::new(),
            tekton_wait: TektonWait::Kept,
            warnings: Vec::new(),
        }
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
pub fn mutate(raw: &Value, options: &Options<'_>) -> Result<Mutation, serde_json::Error> {
    let mut edit = Edit::new(raw);
    let pod = edit.pod()?;
    if let Err(not_ours) = tekton::eligible(&pod) {
        return Ok(Mutation::untouched(not_ours.into()));
    }
    if opted_out(&pod) {
        // Usually we are not even called for it.
        return Ok(Mutation::untouched(Ungated::OptedOut));
    }
    let (settings, malformed) = Settings::of(&pod);
    let mut warnings: Vec<String> = malformed.iter().map(|malformed| format!("kickstand: {malformed}")).collect();
    warnings.extend(slips::of(&pod, &settings).iter().map(|slip| format!("kickstand: {slip}")));

    // Ours to set, and never at CREATE: a preset one would open the gate at once, or claim that a sidecar was stopped.
    for preset in [READY, NUDGED, ORIGINAL_IMAGES] {
        edit.remove_annotation(preset);
    }
    let brought_back = native::bring_back(&mut edit, &pod);
    let pod = edit.pod()?;
    let allowed = native::allowed(&pod, &settings, options.known, options.native.clone(), options.controller_alive);
    let plan = match &allowed {
        Ok(()) if brought_back.is_empty() => native::movable(&pod, options.known),
        Ok(()) => Err(Stays::Stripped),
        Err(stays) => Err(stays.clone()),
    };
    let (held, moved) = move_and_hold(&mut edit, &pod, &settings, options, plan)?;
    let pod = edit.pod()?;
    let nobody_missed = matches!(held, Ok(_) | Err(Ungated::NobodyToAwait));
    let may_skip = options.skip_tekton_wait && allowed.is_ok() && nobody_missed;
    let tekton_wait = native::tekton_wait(&mut edit, &pod, may_skip);
    note(&mut edit, &held)?;

    let decision = match held {
        Ok(waits_for) => Decision::Gated(waits_for),
        Err(why) => {
            if !why.is_silent() {
                warnings.push(format!("{NOT_HELD}{why}"));
            }
            Decision::Ungated(why)
        }
    };
    if settings.strategy == contract::Strategy::Native
        && let Err(why) = &moved
    {
        warnings.push(format!("{STAY_CLASSIC}{why}"));
    }
    Ok(Mutation { patch: edit.into_patch(), decision, moved, brought_back, tekton_wait, warnings })
}

type Held = Result<Vec<String>, Ungated>;
type Moved = Result<Vec<String>, Stays>;

/// Moves those that can be moved, if the gate that they need can be made; and makes the gate.
fn move_and_hold(
    edit: &mut Edit,
    pod: &Pod,
    settings: &Settings,
    options: &Options<'_>,
    plan: Result<Vec<usize>, Stays>,
) -> Result<(Held, Moved), serde_json::Error> {
    let indices = match plan {
        Ok(indices) if !indices.is_empty() => indices,
        none => return Ok((hold(pod, settings, options, edit), none.map(|_| Vec::new()))),
    };
    let names = indices.iter().map(|at| pod.spec.containers[*at].name.clone()).collect();
    let mut moved = edit.clone();
    native::move_to_kubelet(&mut moved, &indices);
    let held = hold(&moved.pod()?, settings, options, &mut moved);
    if held.is_ok() {
        *edit = moved;
        return Ok((held, Ok(names)));
    }
    // Nobody would wait for them: they stay where Tekton does.
    Ok((hold(pod, settings, options, edit), Ok(Vec::new())))
}

/// Says on the pod what was decided; only where something was. Made of what the pod is by now, so that another call which
/// changes nothing else changes nothing here.
fn note(edit: &mut Edit, held: &Held) -> Result<(), serde_json::Error> {
    let pod = edit.pod()?;
    let skipped = native::is_skipped(&pod);
    if held.is_err() && !skipped {
        return Ok(());
    }
    let native = sidecars::native(&pod).next().is_some();
    let strategy = match (sidecars::classic(&pod).next().is_some(), native) {
        (false, true) => "native",
        (true, true) => "mixed",
        (_, false) => "classic",
    };
    let mut note = json!({ "version": env!("CARGO_PKG_VERSION"), "strategy": strategy });
    if let Ok(waits_for) = held {
        note["gate"] = GATE_FILE.into();
        note["waitsFor"] = json!(waits_for);
    }
    if skipped {
        note["tektonWait"] = "skipped".into();
    }
    edit.set_annotation(INJECTED, &note.to_string());
    Ok(())
}

/// Adds the gate, as far as it is not there yet.
fn hold(pod: &Pod, settings: &Settings, options: &Options<'_>, edit: &mut Edit) -> Held {
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
    let change = entrypoint::wait_for(&step.args, GATE_FILE)?;
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
        edit.push(&["spec", "volumes"], gate::volume());
    }
    if !step.volume_mounts.iter().any(gate::is_our_mount) {
        edit.push(&["spec", "containers", step_at.to_string().as_str(), "volumeMounts"], gate::mount());
    }
    if let Some(change) = change {
        edit.change_args(step_at, change);
    }
    Ok(waits_for)
}

#[cfg(test)]
mod tests;
