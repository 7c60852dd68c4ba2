//! Native sidecars (KEP-753): who moves to the kubelet, and why not; whose injector is asked; and Tekton's own wait, which
//! nobody needs once no classic sidecar is left.

use serde_json::Value;

use super::contract::Settings;
use super::edit::Edit;
use super::entrypoint::{self, Flags};
use super::gate;
use super::known::Known;
use super::model::{Container, Pod};
use super::sidecars::{self, Sidecar};
use super::tekton;

/// What Tekton's first step waits for by itself (Tekton ≥ 0.9 at this path).
pub const TEKTON_READY: &str = "/tekton/downward/ready";

const CONTAINERS: [&str; 2] = ["spec", "containers"];
const INIT_CONTAINERS: [&str; 2] = ["spec", "initContainers"];

/// Can this cluster, and this namespace, run native sidecars?
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Off {
    /// The controller has not said anything yet.
    #[error("it is not known whether this cluster can run native sidecars")]
    Unknown,
    /// A node, or the API server.
    #[error("this cluster cannot run native sidecars: {0}")]
    Cluster(String),
    /// The API server refused a pod of this namespace, or of several: a webhook takes `restartPolicy` away.
    #[error("pods with native sidecars were refused here: {0}")]
    Refused(String),
    /// Seen in the TaskRun's pod before this one.
    #[error("a native sidecar of this TaskRun could not be started")]
    Unstartable,
    /// An operator's setting.
    #[error("native sidecars are switched off by --native=off")]
    Setting,
}

/// Why nobody is moved, and nobody asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stays {
    /// The cluster's part.
    #[error("{0}")]
    Off(#[from] Off),
    /// Nobody would release the gate that a moved sidecar needs.
    #[error("no live controller is known")]
    NoController,
    /// Tekton < 0.63: before 0.59 its own update loses `restartPolicy`, and fails the run.
    #[error("the pod does not name its TaskRun's UID (Tekton ≥ 0.63)")]
    OldTekton,
    /// A setting that only the classic strategy can meet.
    #[error("the annotation {0} asks for the classic strategy")]
    Asked(&'static str),
    /// An injector is about to come, and its sidecar will be classic: a mixed pod ends later than either kind.
    #[error("{0} adds a classic sidecar")]
    ComesClassic(String),
    /// A container that is neither a step nor declared by the Task.
    #[error("{0} is not the Task's own")]
    Beside(String),
    /// A declared sidecar that is no server, or starts in a way that would hold up the pod.
    #[error("{0} {1}")]
    Declared(String, &'static str),
    /// An earlier call gave it a gate as it is.
    #[error("it was decided before")]
    Decided,
    /// A webhook took its `restartPolicy` away.
    #[error("another webhook takes restartPolicy away from init containers")]
    Stripped,
}

/// The part of the answer that does not depend on who is in the pod.
///
/// # Errors
/// Why not.
pub fn allowed(
    pod: &Pod,
    settings: &Settings,
    known: &Known,
    cluster: Result<(), Off>,
    controller_alive: bool,
) -> Result<(), Stays> {
    if let Some(setting) = settings.ask_for_classic() {
        return Err(Stays::Asked(setting));
    }
    if !tekton::names_its_owner(pod) {
        return Err(Stays::OldTekton);
    }
    if !controller_alive {
        return Err(Stays::NoController);
    }
    cluster?;
    match known.comes_classic(pod) {
        Some(who) => Err(Stays::ComesClassic(who.to_owned())),
        None => Ok(()),
    }
}

/// The classic sidecars that can become native ones, all or none: a pod with both kinds ends later than with either.
///
/// # Errors
/// Who stays, and why.
pub fn movable(pod: &Pod, known: &Known) -> Result<Vec<usize>, Stays> {
    let classic: Vec<Sidecar<'_>> = sidecars::classic(pod).collect();
    if let Some(other) = classic.iter().find(|sidecar| !is_declared(sidecar.container)) {
        return Err(Stays::Beside(other.name().to_owned()));
    }
    for sidecar in &classic {
        if let Some(why) = why_classic(pod, sidecar, known) {
            return Err(Stays::Declared(sidecar.name().to_owned(), why));
        }
    }
    if !classic.is_empty() && gate::is_gated(pod) {
        return Err(Stays::Decided);
    }
    Ok(classic.into_iter().map(|sidecar| sidecar.index).collect())
}

/// Declared by the Task: Tekton puts `sidecar-` in front of its name.
fn is_declared(container: &Container) -> bool {
    container.name.starts_with("sidecar-")
}

fn why_classic(pod: &Pod, sidecar: &Sidecar<'_>, known: &Known) -> Option<&'static str> {
    let container = sidecar.container;
    let twin = pod.spec.init_containers.iter().any(|init| init.name == container.name);
    [
        (sidecar.ends_by_itself(known), "ends by itself: as a native sidecar it would be started again"),
        // Without one it may well be a one-shot, which would be started again; and nothing would say when it is ready.
        (container.readiness_probe.is_none(), "has no readinessProbe"),
        // Both would hold up the init containers and the steps, and could not be released.
        (container.startup_probe.is_some(), "has a startupProbe"),
        (container.lifecycle.as_ref().is_some_and(|hooks| hooks.post_start.is_some()), "has a postStart hook"),
        (
            container.restart_policy.is_some() || !container.restart_policy_rules.is_empty(),
            "has a restart policy of its own",
        ),
        (twin, "has a namesake among the init containers"),
    ]
    .into_iter()
    .find_map(|(stays, why)| stays.then_some(why))
}

/// Moves containers behind all init containers, in their own order. Without a startupProbe they never block the start; the
/// gate waits for them, and can be released.
pub(super) fn move_to_kubelet(edit: &mut Edit, indices: &[usize]) {
    // From the last one, so that the indices of the others stand.
    let mut taken: Vec<Value> = indices.iter().rev().map(|at| edit.take(&CONTAINERS, *at)).collect();
    while let Some(mut container) = taken.pop() {
        container["restartPolicy"] = "Always".into();
        edit.push(&INIT_CONTAINERS, container);
    }
}

/// Brings sidecars back whose `restartPolicy` a webhook of old types took away: the API server would refuse the pod for
/// their readinessProbe, and no init container of Tekton's own is called so.
pub(super) fn bring_back(edit: &mut Edit, pod: &Pod) -> Vec<String> {
    let stripped: Vec<usize> = pod
        .spec
        .init_containers
        .iter()
        .enumerate()
        .filter(|(_, it)| is_declared(it) && it.readiness_probe.is_some() && it.restart_policy.is_none())
        .map(|(at, _)| at)
        .collect();
    let mut taken: Vec<Value> = stripped.iter().rev().map(|at| edit.take(&INIT_CONTAINERS, *at)).collect();
    while let Some(container) = taken.pop() {
        edit.push(&CONTAINERS, container);
    }
    stripped.into_iter().map(|at| pod.spec.init_containers[at].name.clone()).collect()
}

/// What becomes of Tekton's own wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TektonWait {
    /// Left as Tekton made it.
    Kept,
    /// Taken out: it waits for nobody, and costs a second.
    Skipped,
    /// Put back: an earlier call had taken it out, and now there is a classic sidecar.
    Restored,
}

/// Takes Tekton's own wait out of the first step where no classic sidecar is left for it to wait for, and puts it back
/// where one has come since.
pub(super) fn tekton_wait(edit: &mut Edit, pod: &Pod, may_skip: bool) -> TektonWait {
    let Some(step) = tekton::first_step(pod) else { return TektonWait::Kept };
    let args = &pod.spec.containers[step].args;
    let classic = sidecars::classic(pod).next().is_some();
    let waits = Flags::read(args).waits_for().any(|file| file == TEKTON_READY);
    let skip = waits && !classic && may_skip && sidecars::native(pod).next().is_some();
    if skip && let Some(change) = entrypoint::wait_no_more_for(args, TEKTON_READY) {
        edit.change_args(step, change);
        return TektonWait::Skipped;
    }
    let restore = !waits && classic && is_skipped(pod);
    if restore && let Ok(Some(change)) = entrypoint::wait_for(args, TEKTON_READY) {
        edit.change_args(step, change);
        return TektonWait::Restored;
    }
    TektonWait::Kept
}

/// Tekton meant its first step to wait, which does not: somebody has taken it out. Never stored, always derived: the file
/// is mounted there, and Tekton has not said at once that the step may start. (With `keep-pod-on-cancel` the mount alone
/// proves nothing.)
#[must_use]
pub fn is_skipped(pod: &Pod) -> bool {
    let Some(step) = tekton::first_step(pod) else { return false };
    let step = &pod.spec.containers[step];
    let mounted = step.volume_mounts.iter().filter(|mount| mount.mount_path == "/tekton/downward").any(|mount| {
        let volume = pod.spec.volumes.iter().find(|volume| volume.name == mount.name);
        let items = volume.and_then(|volume| volume.downward_api.as_ref()).map(|api| &api.items);
        items.is_some_and(|items| items.iter().any(|item| item.path == "ready"))
    });
    mounted && !tekton::is_ready(pod) && !gate::tekton_waits(pod)
}
