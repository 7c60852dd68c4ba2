//! What the controller counts: its actions, how long they took, and what it holds.

use std::fmt::{self, Write as _};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::pod::contract::Reason;

/// What was done to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// The gate was opened.
    OpenGate,
    /// Sidecars were stopped.
    Stop,
    /// The pod was ended by its deadline.
    End,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionResult {
    /// The API server took it.
    Done,
    /// The pod had changed: it was looked at again.
    MovedOn,
    /// The API server will not have it.
    Refused,
    /// The API server could not answer, after several tries.
    Unanswered,
}

/// How an Event went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventResult {
    /// It is there.
    Written,
    /// It was there already.
    Known,
    /// It could not be written.
    Failed,
}

/// Why a stop was refused, by the answer's status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// 403: no permission, a quota, or a policy.
    Forbidden,
    /// 422: the pod would not be valid, or a policy.
    Invalid,
    /// Any other.
    Other,
}

/// What a live read of a TaskRun said of the cached verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VerdictRead {
    /// The same.
    Confirmed,
    /// There is no verdict: the cache was behind.
    Refuted,
    /// It may not be read.
    Unreadable,
    /// No answer.
    Unanswered,
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Watched {
    Pods,
    TaskRuns,
    Namespaces,
}

/// Which of our certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Certificate {
    /// The authority.
    Ca,
    /// The webhook's own.
    Leaf,
}

/// Why a certificate was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IssueReason {
    /// There was none.
    Missing,
    /// Two thirds of its time are over.
    Due,
    /// It could not be read, or did not fit its key, its names or its authority.
    Unfit,
}

/// The words of a closed set of labels.
macro_rules! words {
    ($($name:ident { $($variant:ident => $word:literal),+ $(,)? })+) => {$(
        impl EncodeLabelValue for $name {
            fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
                encoder.write_str(match self { $(Self::$variant => $word),+ })
            }
        }
    )+};
}

words! {
    ActionKind { OpenGate => "open_gate", Stop => "stop", End => "end" }
    ActionResult { Done => "done", MovedOn => "moved_on", Refused => "refused", Unanswered => "unanswered" }
    EventResult { Written => "written", Known => "known", Failed => "failed" }
    Refusal { Forbidden => "forbidden", Invalid => "invalid", Other => "other" }
    VerdictRead { Confirmed => "confirmed", Refuted => "refuted", Unreadable => "unreadable", Unanswered => "unanswered" }
    Watched { Pods => "pods", TaskRuns => "taskruns", Namespaces => "namespaces" }
    Certificate { Ca => "ca", Leaf => "leaf" }
    IssueReason { Missing => "missing", Due => "due", Unfit => "unfit" }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActionLabels {
    kind: ActionKind,
    result: ActionResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    reason: &'static str,
    result: EventResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    code: Refusal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    result: VerdictRead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    resource: Watched,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CertificateLabels {
    certificate: Certificate,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IssueLabels {
    certificate: Certificate,
    reason: IssueReason,
}

/// The controller's metrics. Clones count into the same ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    actions: Family<ActionLabels, Counter>,
    events: Family<EventLabels, Counter>,
    refusals: Family<RefusalLabels, Counter>,
    verdict_reads: Family<VerdictLabels, Counter>,
    watch_errors: Family<WatchLabels, Counter>,
    leader: Gauge,
    pods: Gauge,
    gates_shut: Gauge,
    gate_wait: Histogram,
    gate_delay: Histogram,
    stop_delay: Histogram,
    end_delay: Histogram,
    issued: Family<IssueLabels, Counter>,
    expiry: Family<CertificateLabels, Gauge>,
}

impl Metrics {
    /// Registers every family under the prefix `kickstand_`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            actions: Family::default(),
            events: Family::default(),
            refusals: Family::default(),
            verdict_reads: Family::default(),
            watch_errors: Family::default(),
            leader: Gauge::default(),
            pods: Gauge::default(),
            gates_shut: Gauge::default(),
            // Seconds to an hour: a pod waits for its sidecars' start.
            gate_wait: Histogram::new([
                0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
            ]),
            // Milliseconds to seconds: our own part.
            gate_delay: Histogram::new([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            stop_delay: Histogram::new([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            // From the kubelet's floor to a deaf sidecar's grace and beyond.
            end_delay: Histogram::new([
                1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 30.0, 45.0, 60.0, 120.0, 300.0, 600.0,
            ]),
            issued: Family::default(),
            expiry: Family::default(),
        };
        let registry = registry.sub_registry_with_prefix("kickstand");
        registry.register(
            "controller_actions",
            "Changes that the controller made, or tried to make, to pods: by what was done and how the API server answered",
            metrics.actions.clone(),
        );
        registry.register("controller_events", "Events written on pods, by reason and result", metrics.events.clone());
        registry.register(
            "controller_refused_stops",
            "Stops of sidecars that the API server refused for good (permissions, policies, quotas), by class of status code",
            metrics.refusals.clone(),
        );
        registry.register(
            "controller_verdict_reads",
            "Live reads of TaskRuns that confirm a verdict before anything is done on it; refuted means that the watch was behind",
            metrics.verdict_reads.clone(),
        );
        registry.register(
            "controller_watch_errors",
            "Errors of the controller's watches, by what is watched; a few at a time are normal",
            metrics.watch_errors.clone(),
        );
        registry.register(
            "controller_is_leader",
            "1 while this replica holds the Lease and acts, else 0; the sum over replicas should be 1",
            metrics.leader.clone(),
        );
        registry.register(
            "controller_pods",
            "Pods of TaskRuns that have not ended, as this replica sees them",
            metrics.pods.clone(),
        );
        registry.register(
            "controller_gates_shut",
            "Pods whose first step is held now, as this replica sees them",
            metrics.gates_shut.clone(),
        );
        registry.register(
            "gate_wait_seconds",
            "From a pod's start to the opening of its gate: what its sidecars cost the run",
            metrics.gate_wait.clone(),
        );
        registry.register(
            "gate_open_delay_seconds",
            "From the watch event that showed the last sidecar ready to the API server's answer to the opening of the gate: what Kickstand itself costs the run",
            metrics.gate_delay.clone(),
        );
        registry.register(
            "stop_delay_seconds",
            "From the decision to stop sidecars to the API server's answer, the live read of the TaskRun included",
            metrics.stop_delay.clone(),
        );
        registry.register(
            "pod_end_delay_seconds",
            "From the watch event that showed all steps done to the one that showed the pod ended",
            metrics.end_delay.clone(),
        );
        registry.register(
            "certificates_issued",
            "Certificates issued for the webhook, by which one and why",
            metrics.issued.clone(),
        );
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "When the certificate in use expires, in seconds since 1970; known to the leader alone",
            metrics.expiry.clone(),
        );
        metrics
    }

    pub(crate) fn action(&self, kind: ActionKind, result: ActionResult) {
        self.actions.get_or_create(&ActionLabels { kind, result }).inc();
    }

    pub(crate) fn event(&self, reason: Reason, result: EventResult) {
        self.events.get_or_create(&EventLabels { reason: reason.as_str(), result }).inc();
    }

    pub(crate) fn stop_refused(&self, code: Refusal) {
        self.refusals.get_or_create(&RefusalLabels { code }).inc();
    }

    pub(crate) fn verdict_read(&self, result: VerdictRead) {
        self.verdict_reads.get_or_create(&VerdictLabels { result }).inc();
    }

    pub(crate) fn watch_error(&self, resource: Watched) {
        self.watch_errors.get_or_create(&WatchLabels { resource }).inc();
    }

    pub(crate) fn leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }

    pub(crate) fn holds(&self, pods: usize, gates_shut: usize) {
        self.pods.set(i64::try_from(pods).unwrap_or(i64::MAX));
        self.gates_shut.set(i64::try_from(gates_shut).unwrap_or(i64::MAX));
    }

    pub(crate) fn gate_waited(&self, time: Duration) {
        self.gate_wait.observe(time.as_secs_f64());
    }

    pub(crate) fn gate_opened_after(&self, time: Duration) {
        self.gate_delay.observe(time.as_secs_f64());
    }

    pub(crate) fn stopped_after(&self, time: Duration) {
        self.stop_delay.observe(time.as_secs_f64());
    }

    pub(crate) fn ended_after(&self, time: Duration) {
        self.end_delay.observe(time.as_secs_f64());
    }

    pub(crate) fn issued(&self, certificate: Certificate, reason: IssueReason) {
        self.issued.get_or_create(&IssueLabels { certificate, reason }).inc();
    }

    pub(crate) fn expires(&self, certificate: Certificate, at: i64) {
        self.expiry.get_or_create(&CertificateLabels { certificate }).set(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_the_prefix_and_a_help_text() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.action(ActionKind::OpenGate, ActionResult::Done);
        metrics.event(Reason::GateOpened, EventResult::Written);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains(r#"kickstand_controller_actions_total{kind="open_gate",result="done"} 1"#), "{text}");
        assert!(text.contains(r#"reason="KickstandGateOpened""#), "{text}");
        for line in text.lines().filter(|line| line.starts_with("# HELP")) {
            assert!(line.starts_with("# HELP kickstand_") && line.split(' ').count() > 5, "{line}");
        }
    }
}
