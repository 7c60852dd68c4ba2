//! What became of one sample.

use super::{Answer, SIDECAR};
use crate::pod::contract::{GATE_FILE, READY};
use crate::pod::entrypoint::Flags;
use crate::pod::gate;
use crate::pod::model::Pod;
use crate::pod::mutate::{NOT_HELD, STAY_CLASSIC};
use crate::pod::sidecars;
use crate::pod::tekton;

/// What became of one sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Silent(String),
    Refused(String),
    NotCalled,
    NotHeld(Option<String>),
    /// It waits for a file that never comes.
    Stuck,
    Native,
    /// And why.
    Classic(Option<String>),
    /// Native, beside these.
    Mixed(String),
}

impl Outcome {
    pub(super) fn of(answer: &Answer) -> Self {
        let (raw, warnings) = match answer {
            Answer::None(why) => return Self::Silent(why.clone()),
            Answer::Refused(message) => return Self::Refused(message.clone()),
            Answer::Created(raw, warnings) => (raw, warnings),
        };
        let pod = match Pod::from_raw(raw) {
            Ok(pod) => pod,
            Err(error) => return Self::Silent(format!("what came back is no Pod: {error}")),
        };
        let said = |start| warnings.iter().find_map(|warning| warning.strip_prefix(start)).map(str::to_owned);
        if pod.annotation(READY).is_some() {
            return Self::NotCalled;
        }
        if !gate::is_gated(&pod) || !has_mount(&pod) {
            return if waits(&pod) { Self::Stuck } else { Self::NotHeld(said(NOT_HELD)) };
        }
        let classic: Vec<&str> = sidecars::classic(&pod).map(|sidecar| sidecar.container.name.as_str()).collect();
        let native = sidecars::native(&pod).any(|sidecar| sidecar.container.name == SIDECAR);
        match (native, classic.is_empty()) {
            (true, true) => Self::Native,
            (true, false) => Self::Mixed(classic.join(", ")),
            (false, _) => Self::Classic(said(STAY_CLASSIC)),
        }
    }
}

fn waits(pod: &Pod) -> bool {
    let files = pod.spec.containers.iter().filter(|container| tekton::is_step(container));
    files.into_iter().any(|step| Flags::read(&step.args).waits_for().any(|file| file == GATE_FILE))
}

fn has_mount(pod: &Pod) -> bool {
    tekton::first_step(pod).is_some_and(|step| pod.spec.containers[step].volume_mounts.iter().any(gate::is_our_mount))
}
