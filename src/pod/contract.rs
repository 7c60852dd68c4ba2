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
/// Annotation of the TaskRun: `"classic"` or `"native"`: forces one; `native` still refuses what is not safe.
pub const STRATEGY: &str = "kickstand.dev/strategy";
/// Annotation of the pod, ours: what the webhook decided. For people; never read to decide.
pub const INJECTED: &str = "kickstand.dev/injected";
/// Annotation of the pod, ours: absent until the gate opens, then the time (RFC 3339).
pub const READY: &str = "kickstand.dev/ready";
/// Annotation of the pod, ours: when the kubelet was made to look at an opened gate once more (RFC 3339).
pub const NUDGED: &str = "kickstand.dev/nudged";
/// Annotation of the pod, ours: what each stopped container ran, and when it was stopped (JSON: [`Stopped`] by name).
pub const ORIGINAL_IMAGES: &str = "kickstand.dev/original-images";

/// Annotation of the controller's Lease, ours: what its leader tells the webhook (JSON: [`Facts`](super::facts::Facts)).
pub const FACTS: &str = "kickstand.dev/facts";
/// Annotation of the controller's Lease, an operator's: `"true"` allows native sidecars again where they were refused. The
/// leader removes it when that is done.
pub const ALLOW_NATIVE: &str = "kickstand.dev/allow-native";

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

/// Who brings the sidecars to their end ([`STRATEGY`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Nothing is set: the kubelet, where that is safe.
    #[default]
    Default,
    /// We: a gate, and a swap of images.
    Classic,
    /// The kubelet (KEP-753), and a warning where that is not safe.
    Native,
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
    /// [`STRATEGY`].
    pub strategy: Strategy,
    pub(super) ignore: BTreeSet<String>,
    finish: BTreeMap<String, SignedDuration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            gate: true,
            stop: true,
            gate_timeout: GateTimeout::Default,
            keep_logs: false,
            strategy: Strategy::Default,
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
        match value(STRATEGY) {
            None => {}
            Some("classic") => settings.strategy = Strategy::Classic,
            Some("native") => settings.strategy = Strategy::Native,
            Some(text) => {
                let why = "is neither \"classic\" nor \"native\"";
                malformed.push(Malformed::new(STRATEGY, text, why, "native where that is safe"));
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
                .filter(|(name, _)| !name.trim().is_empty())
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

    /// Only the classic strategy can do what these ask for: the kubelet waits for and ends native sidecars by itself.
    /// Names the setting that asks.
    #[must_use]
    pub fn ask_for_classic(&self) -> Option<&'static str> {
        [
            (self.strategy == Strategy::Classic, STRATEGY),
            (!self.gate, GATE),
            (!self.stop, STOP),
            (!self.finish.is_empty(), FINISH),
            (!self.ignore.is_empty(), IGNORE),
        ]
        .into_iter()
        .find_map(|(asks, key)| asks.then_some(key))
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
        Self { key, value: harmless(value), why: why.into(), instead }
    }
}

/// A value is a tenant's: it goes into messages, so it must neither flood nor break them. (A warning with a control
/// character in it is dropped by the API server.)
pub(super) fn harmless(value: &str) -> String {
    value.chars().take(64).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A container's name, and what it was before Tekton put `sidecar-` in front.
pub(super) fn names(container: &str) -> impl Iterator<Item = &str> {
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

/// Far longer than the note of any pod; a longer one is not ours.
const LONGEST_NOTE: usize = 16 << 10;

/// Reads [`ORIGINAL_IMAGES`]; empty if it is absent or not ours.
#[must_use]
pub fn stopped(pod: &Pod) -> BTreeMap<String, Stopped> {
    pod.annotation(ORIGINAL_IMAGES)
        .filter(|text| text.len() <= LONGEST_NOTE)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
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
    /// The pod was deleted before a step had started, so that Tekton makes it anew with classic sidecars: a native one
    /// could not be started.
    PodReplaced,
    /// The pod is ended by its `activeDeadlineSeconds`, since nothing else will end it.
    PodEnded,
    /// An annotation could not be read.
    BadAnnotation,
}

impl Reason {
    /// Every reason, for the documentation.
    pub const ALL: [Self; 9] = [
        Self::GateOpened,
        Self::GateOpenedUnready,
        Self::GateHeld,
        Self::GateClosed,
        Self::SidecarsStopped,
        Self::StopRefused,
        Self::PodReplaced,
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
            Self::PodReplaced => "KickstandPodReplaced",
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

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn read(key: &str, value: &str) -> (Settings, Vec<Malformed>) {
        Settings::of(&Pod::from_raw(&json!({ "metadata": { "annotations": { key: value } } })).unwrap())
    }

    #[rstest]
    #[case::no_map(json!({}))]
    #[case::a_null_map(json!({ "annotations": null }))]
    #[case::an_empty_map(json!({ "annotations": {} }))]
    #[case::others_annotations(json!({ "annotations": { "tekton.dev/gate": "false", "kickstand.dev/injected": "{" } }))]
    fn what_is_not_set_has_its_default(#[case] metadata: serde_json::Value) {
        let read = Settings::of(&Pod::from_raw(&json!({ "metadata": metadata })).unwrap());
        assert_eq!(read, (Settings::default(), vec![]));
    }

    #[test]
    fn by_default_everything_is_on_and_nothing_is_special() {
        let settings = Settings::default();
        assert!(settings.gate && settings.stop && !settings.keep_logs);
        assert_eq!(settings.gate_timeout, GateTimeout::Default);
        assert!(!settings.ignores("web") && settings.finish("web").is_none());
    }

    #[rstest]
    #[case::gate(GATE, "false", Settings { gate: false, ..Settings::default() })]
    #[case::gate_on(GATE, "true", Settings::default())]
    #[case::stop(STOP, "false", Settings { stop: false, ..Settings::default() })]
    #[case::keep_logs(KEEP_LOGS, "true", Settings { keep_logs: true, ..Settings::default() })]
    #[case::with_blanks(KEEP_LOGS, " true\n", Settings { keep_logs: true, ..Settings::default() })]
    fn a_switch_is_read(#[case] key: &str, #[case] value: &str, #[case] settings: Settings) {
        assert_eq!(read(key, value), (settings, vec![]));
    }

    #[rstest]
    #[case::nothing(GATE_TIMEOUT, "5m", None)]
    #[case::kept_logs_are_what_native_sidecars_have_anyway(KEEP_LOGS, "true", None)]
    #[case::native(STRATEGY, "native", None)]
    #[case::classic(STRATEGY, "classic", Some(STRATEGY))]
    #[case::no_gate(GATE, "false", Some(GATE))]
    #[case::no_stop(STOP, "false", Some(STOP))]
    #[case::time_to_finish(FINISH, "uploader=60s", Some(FINISH))]
    #[case::ignored(IGNORE, "web", Some(IGNORE))]
    #[case::nobody_ignored(IGNORE, " , ", None)]
    fn some_settings_can_only_be_met_by_the_classic_strategy(
        #[case] key: &str,
        #[case] value: &str,
        #[case] by: Option<&str>,
    ) {
        assert_eq!(read(key, value).0.ask_for_classic(), by);
    }

    #[rstest]
    #[case("classic", Strategy::Classic, 0)]
    #[case("native", Strategy::Native, 0)]
    #[case("Native", Strategy::Default, 1)]
    #[case("", Strategy::Default, 1)]
    fn a_strategy_is_read(#[case] value: &str, #[case] strategy: Strategy, #[case] malformed: usize) {
        let (settings, found) = read(STRATEGY, value);
        assert_eq!((settings.strategy, found.len()), (strategy, malformed));
    }

    #[rstest]
    #[case("5m", GateTimeout::After(SignedDuration::from_mins(5)))]
    #[case("90s", GateTimeout::After(SignedDuration::from_secs(90)))]
    #[case("1h30m", GateTimeout::After(SignedDuration::from_mins(90)))]
    #[case("0", GateTimeout::Never)]
    #[case("0s", GateTimeout::Never)]
    fn a_timeout_is_read(#[case] value: &str, #[case] timeout: GateTimeout) {
        assert_eq!(read(GATE_TIMEOUT, value), (Settings { gate_timeout: timeout, ..Settings::default() }, vec![]));
    }

    #[rstest]
    #[case::gate(
        GATE,
        "no",
        "annotation kickstand.dev/gate: \"no\" is neither \"true\" nor \"false\"; the first step is gated"
    )]
    #[case::case_matters(
        GATE,
        "False",
        "annotation kickstand.dev/gate: \"False\" is neither \"true\" nor \"false\"; the first step is gated"
    )]
    #[case::empty(
        STOP,
        "",
        "annotation kickstand.dev/stop: \"\" is neither \"true\" nor \"false\"; sidecars are stopped"
    )]
    #[case::keep_logs(
        KEEP_LOGS,
        "1",
        "annotation kickstand.dev/keep-logs: \"1\" is neither \"true\" nor \"false\"; logs are kept where it costs nothing"
    )]
    #[case::no_unit(
        GATE_TIMEOUT,
        "5",
        "annotation kickstand.dev/gate-timeout: \"5\" is no duration such as 90s or 5m; the default timeout holds"
    )]
    #[case::too_long(
        GATE_TIMEOUT,
        "99999999999999999h",
        "annotation kickstand.dev/gate-timeout: \"99999999999999999h\" is no duration such as 90s or 5m; the default timeout holds"
    )]
    #[case::negative(
        GATE_TIMEOUT,
        "-5m",
        "annotation kickstand.dev/gate-timeout: \"-5m\" is negative; the default timeout holds"
    )]
    #[case::no_time(
        FINISH,
        "uploader",
        "annotation kickstand.dev/finish: \"uploader\" is not name=duration; it is stopped with the others"
    )]
    #[case::no_name(
        FINISH,
        "=60s",
        "annotation kickstand.dev/finish: \"=60s\" is not name=duration; it is stopped with the others"
    )]
    #[case::a_bad_time(
        FINISH,
        "uploader=soon",
        "annotation kickstand.dev/finish: \"uploader=soon\" is no duration such as 90s or 5m; it is stopped with the others"
    )]
    #[case::a_line_break(
        GATE,
        "a\nb",
        "annotation kickstand.dev/gate: \"a b\" is neither \"true\" nor \"false\"; the first step is gated"
    )]
    fn a_malformed_value_says_so_and_the_default_holds(#[case] key: &str, #[case] value: &str, #[case] message: &str) {
        let (settings, malformed) = read(key, value);
        assert_eq!(settings, Settings::default());
        assert_eq!(malformed.iter().map(ToString::to_string).collect::<Vec<_>>(), [message]);
    }

    #[test]
    fn a_long_value_is_shortened_in_what_is_said() {
        let (_, malformed) = read(GATE, &"é".repeat(10_000));
        assert_eq!(malformed[0].value.chars().count(), 64);
    }

    #[test]
    fn one_malformed_entry_leaves_the_others_standing() {
        let (settings, malformed) = read(FINISH, "uploader=60s, nonsense ,sidecar-mirror=1m,");
        assert_eq!(settings.finish("uploader"), Some(SignedDuration::from_secs(60)));
        assert_eq!(settings.finish("sidecar-mirror"), Some(SignedDuration::from_secs(60)));
        assert_eq!(malformed.len(), 1);
    }

    #[rstest]
    #[case::by_its_name("web", "web", true)]
    #[case::by_its_name_in_the_task("web", "sidecar-web", true)]
    #[case::by_its_name_in_the_pod("sidecar-web", "sidecar-web", true)]
    #[case::not_by_more_than_its_name("sidecar-web", "web", false)]
    #[case::not_by_a_part_of_it("web", "web-cache", false)]
    #[case::one_of_several("vault-agent, web ,", "web", true)]
    #[case::nobody(",", "", false)]
    fn a_container_is_ignored(#[case] value: &str, #[case] container: &str, #[case] ignored: bool) {
        assert_eq!(read(IGNORE, value).0.ignores(container), ignored);
    }

    #[rstest]
    #[case::out(json!({ "kickstand.dev/inject": "false" }), true)]
    #[case::in_(json!({ "kickstand.dev/inject": "true" }), false)]
    #[case::unset(json!({}), false)]
    fn a_pod_opts_out_by_its_label(#[case] labels: serde_json::Value, #[case] out: bool) {
        assert_eq!(opted_out(&Pod::from_raw(&json!({ "metadata": { "labels": labels } })).unwrap()), out);
    }

    #[rstest]
    #[case::ours(r#"{"web":{"image":"nginx","at":"2026-01-15T10:00:00Z"}}"#, 1)]
    #[case::cut_off(r#"{"web":{"#, 0)]
    #[case::of_another_shape(r#"["web"]"#, 0)]
    fn what_was_stopped_is_read_if_it_is_ours(#[case] value: &str, #[case] count: usize) {
        let pod = Pod::from_raw(&json!({ "metadata": { "annotations": { ORIGINAL_IMAGES: value } } })).unwrap();
        assert_eq!(stopped(&pod).len(), count);
    }

    #[test]
    fn every_reason_has_its_own_word() {
        let words: BTreeSet<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
        assert!(words.iter().all(|word| word.starts_with("Kickstand")));
    }
}
