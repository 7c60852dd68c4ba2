//! The public API: labels, annotations, names in the pod, and the words of our Events.
//!
//! Everything here is frozen once released. The gate's shape above all: an older controller must release what a newer
//! webhook held, and a newer controller what an older one did.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use super::model::Pod;

/// Label of a namespace (`"true"` or `"false"`) or of a pod (`"false"`): opt in or out.
pub const INJECT: &str = "kickstand.dev/inject";
/// Annotation of the TaskRun (Tekton copies it to the pod): `"false"` leaves the first step ungated.
pub const GATE: &str = "kickstand.dev/gate";
/// Annotation of the TaskRun: `"false"` leaves the sidecars running.
pub const STOP: &str = "kickstand.dev/stop";
/// Annotation of the TaskRun: the gate opens that long after the pod's start, with a Warning; `"0"` = never by time.
pub const GATE_TIMEOUT: &str = "kickstand.dev/gate-timeout";
/// Annotation of the TaskRun: containers neither waited for nor stopped, separated by commas.
pub const IGNORE: &str = "kickstand.dev/ignore";
/// Annotation of the TaskRun: `name=60s,…`: may run on that long after the last step, to end by itself.
pub const FINISH: &str = "kickstand.dev/finish";
/// Annotation of the TaskRun: `"true"` stops sidecars so that their logs survive, even at the price of the pod's phase.
pub const KEEP_LOGS: &str = "kickstand.dev/keep-logs";
/// Annotation of the pod, ours: what the webhook decided. For people; never read to decide.
pub const INJECTED: &str = "kickstand.dev/injected";
/// Annotation of the pod, ours: absent until the gate opens, then the time (RFC 3339).
pub const READY: &str = "kickstand.dev/ready";
/// Annotation of the pod, ours: what each stopped container ran, and when it was stopped (JSON: [`Stopped`] by name).
pub const ORIGINAL_IMAGES: &str = "kickstand.dev/original-images";

/// The gate's volume: a downward-API projection of the annotation [`READY`].
pub const GATE_VOLUME: &str = "kickstand-gate";
/// Where the gate's volume is mounted in the first step.
pub const GATE_DIR: &str = "/kickstand";
/// The file in the gate's volume.
pub const GATE_ITEM: &str = "ready";
/// The file that the first step's entrypoint waits for: [`GATE_ITEM`] in [`GATE_DIR`].
pub const GATE_FILE: &str = "/kickstand/ready";

/// An image name that the API server takes and no runtime can parse (an upper-case repository): the kubelet stops the
/// container, asks no registry and starts nothing, and the logs stay. Seen on Kubernetes 1.37 with containerd 2.4.
pub const ENDED_IMAGE: &str = "kickstand.dev/Ended";

/// What an annotation says that could not be read: the default holds, and this is said in the admission response and in
/// an Event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("annotation {key}: \"{value}\" {why}; {instead}")]
pub struct Malformed {
    /// The annotation.
    pub key: &'static str,
    /// Its value, shortened.
    pub value: String,
    /// What is wrong with it.
    pub why: String,
    /// What holds instead.
    pub instead: &'static str,
}

/// When a shut gate opens by time alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GateTimeout {
    /// Nothing is set: see `decide` for the default.
    #[default]
    Default,
    /// `"0"`: never.
    Never,
    /// That long after the pod's start.
    After(SignedDuration),
}

/// A pod's settings, from its annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Hold the first step ([`GATE`]).
    pub gate: bool,
    /// Stop the sidecars ([`STOP`]).
    pub stop: bool,
    /// [`GATE_TIMEOUT`].
    pub gate_timeout: GateTimeout,
    /// [`KEEP_LOGS`].
    pub keep_logs: bool,
    ignore: BTreeSet<String>,
    finish: BTreeMap<String, SignedDuration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gate: true,
            stop: true,
            gate_timeout: GateTimeout::Default,
            keep_logs: false,
            ignore: BTreeSet::new(),
            finish: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Reads a pod's annotations. What is malformed is returned beside the settings, and has its default in them.
    #[must_use]
    pub fn of(pod: &Pod) -> (Self, Vec<Malformed>) {
        let mut malformed = Vec::new();
        let mut settings = Self::default();
        let value = |key| pod.annotation(key).map(str::trim);
        if let Some(text) = value(GATE) {
            settings.gate = boolean(GATE, text, true, "the first step is gated", &mut malformed);
        }
        if let Some(text) = value(STOP) {
            settings.stop = boolean(STOP, text, true, "sidecars are stopped", &mut malformed);
        }
        if let Some(text) = value(KEEP_LOGS) {
            settings.keep_logs =
                boolean(KEEP_LOGS, text, false, "logs are kept where it costs nothing", &mut malformed);
        }
        if let Some(text) = value(GATE_TIMEOUT) {
            match duration(text) {
                Ok(time) if time.is_zero() => settings.gate_timeout = GateTimeout::Never,
                Ok(time) => settings.gate_timeout = GateTimeout::After(time),
                Err(why) => malformed.push(Malformed::new(GATE_TIMEOUT, text, why, "the default timeout holds")),
            }
        }
        for name in value(IGNORE).into_iter().flat_map(|text| text.split(',')).map(str::trim) {
            if !name.is_empty() {
                settings.ignore.insert(name.to_owned());
            }
        }
        for entry in value(FINISH).into_iter().flat_map(|text| text.split(',')).map(str::trim) {
            if entry.is_empty() {
                continue;
            }
            let read = entry
                .split_once('=')
                .ok_or_else(|| "is not name=duration".to_owned())
                .and_then(|(name, time)| duration(time.trim()).map(|time| (name.trim().to_owned(), time)));
            match read {
                Ok((name, time)) => {
                    settings.finish.insert(name, time);
                }
                Err(why) => malformed.push(Malformed::new(FINISH, entry, why, "it is stopped with the others")),
            }
        }
        (settings, malformed)
    }

    /// Neither waited for nor stopped: named in [`IGNORE`], with or without Tekton's `sidecar-`.
    #[must_use]
    pub fn ignores(&self, container: &str) -> bool {
        names(container).any(|name| self.ignore.contains(name))
    }

    /// How long a container may run on after the last step ([`FINISH`]).
    #[must_use]
    pub fn finish(&self, container: &str) -> Option<SignedDuration> {
        names(container).find_map(|name| self.finish.get(name).copied())
    }
}

impl Malformed {
    fn new(key: &'static str, value: &str, why: impl Into<String>, instead: &'static str) -> Self {
        // A value is a tenant's: it goes into messages, so it must not be able to flood them.
        Self { key, value: value.chars().take(64).collect(), why: why.into(), instead }
    }
}

/// A container's name, and what it was before Tekton put `sidecar-` in front.
fn names(container: &str) -> impl Iterator<Item = &str> {
    std::iter::once(container).chain(container.strip_prefix("sidecar-"))
}

fn boolean(
    key: &'static str,
    text: &str,
    default: bool,
    instead: &'static str,
    malformed: &mut Vec<Malformed>,
) -> bool {
    match text {
        "true" => true,
        "false" => false,
        _ => {
            malformed.push(Malformed::new(key, text, "is neither \"true\" nor \"false\"", instead));
            default
        }
    }
}

/// `90s`, `5m`, `1h30m`; `0`.
fn duration(text: &str) -> Result<SignedDuration, String> {
    if text == "0" {
        return Ok(SignedDuration::ZERO);
    }
    let time: SignedDuration = text.parse().map_err(|_| "is no duration such as 90s or 5m".to_owned())?;
    if time.is_negative() { Err("is negative".to_owned()) } else { Ok(time) }
}

/// One entry of [`ORIGINAL_IMAGES`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stopped {
    /// The image it ran.
    pub image: String,
    /// When it was asked to stop.
    pub at: jiff::Timestamp,
}

/// Reads [`ORIGINAL_IMAGES`]; empty if it is absent or not ours.
#[must_use]
pub fn stopped(pod: &Pod) -> BTreeMap<String, Stopped> {
    pod.annotation(ORIGINAL_IMAGES).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Opted out by its own label. (A namespace's label is the caller's to know.)
#[must_use]
pub fn opted_out(pod: &Pod) -> bool {
    pod.label(INJECT) == Some("false")
}

/// Why we speak: the `reason` of an Event on the pod. A user's alerts match these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The gate opened: every awaited sidecar is ready.
    GateOpened,
    /// The gate opened although a sidecar is not ready: it ended, it keeps crashing, or the timeout is over.
    GateOpenedUnready,
    /// The gate has been shut for a while; names what it waits for.
    GateHeld,
    /// The gate stays shut for good: the run is over or cancelled.
    GateClosed,
    /// Sidecars were told to stop: the steps are done.
    SidecarsStopped,
    /// The API server refused to have a sidecar stopped.
    StopRefused,
    /// The pod is ended by its `activeDeadlineSeconds`, since nothing else will end it.
    PodEnded,
    /// An annotation could not be read.
    BadAnnotation,
}

impl Reason {
    /// Every reason, for the documentation.
    pub const ALL: [Self; 8] = [
        Self::GateOpened,
        Self::GateOpenedUnready,
        Self::GateHeld,
        Self::GateClosed,
        Self::SidecarsStopped,
        Self::StopRefused,
        Self::PodEnded,
        Self::BadAnnotation,
    ];

    /// As it stands in the Event.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::GateOpened => "KickstandGateOpened",
            Self::GateOpenedUnready => "KickstandGateOpenedUnready",
            Self::GateHeld => "KickstandGateHeld",
            Self::GateClosed => "KickstandGateClosed",
            Self::SidecarsStopped => "KickstandSidecarsStopped",
            Self::StopRefused => "KickstandStopRefused",
            Self::PodEnded => "KickstandPodEnded",
            Self::BadAnnotation => "KickstandBadAnnotation",
        }
    }

    /// A Warning, or a Normal Event.
    #[must_use]
    pub fn is_warning(self) -> bool {
        !matches!(self, Self::GateOpened | Self::SidecarsStopped)
    }
}
