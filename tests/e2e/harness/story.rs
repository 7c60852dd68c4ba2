//! The times of a TaskRun pod's life that people ask for, from the record.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use super::pods::PodExt as _;
use super::record::View;

/// When what was seen; what was not is missing.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Story {
    /// The pod was seen for the first time.
    pub(crate) created: Timestamp,
    /// Every sidecar had been seen ready.
    pub(crate) sidecars_ready: Option<Timestamp>,
    /// The gate (whoever's it is) was seen open.
    pub(crate) gate_open: Option<Timestamp>,
    /// The first step's command was started: the entrypoint's word, by the node's clock.
    pub(crate) step_started: Option<Timestamp>,
    /// Every step was seen ended.
    pub(crate) steps_done: Option<Timestamp>,
    /// A sidecar was seen told to stop: it has another image than at first.
    pub(crate) told_to_stop: Option<Timestamp>,
    /// The pod was seen ended.
    pub(crate) pod_ended: Option<Timestamp>,
    /// Its phase when it was seen last.
    pub(crate) phase: String,
}

impl Story {
    /// `gate` is the annotation that opens it.
    pub(crate) fn of(seen: &View<'_>, pod: &str, gate: &str) -> Option<Self> {
        let last = seen.pod(pod)?;
        let first = |holds: &dyn Fn(&Pod) -> bool| seen.first(pod, holds).map(|(_, at)| at);
        let ready: Option<Vec<Timestamp>> =
            sidecars(&last).iter().map(|name| first(&|pod| pod.is_ready(name))).collect();
        let before = seen.history(pod).next().map(|(_, _, pod)| pod.clone())?;
        let step = last.steps().first().map(|step| (*step).to_owned())?;
        Some(Self {
            created: first(&|_| true)?,
            sidecars_ready: ready.and_then(|all| all.into_iter().max()),
            gate_open: first(&|pod| pod.annotation(gate).is_some_and(|value| !value.is_empty())),
            step_started: last.step_started(&step),
            steps_done: first(&|pod| pod.steps_done()),
            told_to_stop: first(&|pod| {
                let images = pod.containers().iter().zip(before.containers());
                images.into_iter().any(|(now, before)| now.image != before.image)
            }),
            pod_ended: first(&|pod| pod.is_terminal()),
            phase: last.phase().to_owned(),
        })
    }
}

/// The names of a pod's sidecars, classic and native.
pub(crate) fn sidecars(pod: &Pod) -> Vec<String> {
    let classic = pod.containers().iter().filter(|it| !it.name.starts_with("step-"));
    let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let native = init.filter(|it| it.restart_policy.as_deref() == Some("Always"));
    classic.chain(native).map(|it| it.name.clone()).collect()
}

/// Seconds from one to the other, if both were seen.
pub(crate) fn seconds(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<f64> {
    Some(to?.duration_since(from?).as_secs_f64())
}
