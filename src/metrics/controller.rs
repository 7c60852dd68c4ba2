//! What the controller counts: its actions, how long they took, and what it holds.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::{Closed, Counters, closed_label};
use crate::pod::contract::Reason;

closed_label! {
    /// What was done to a pod.
    ActionKind, "kind" {
        /// The gate was opened.
        OpenGate => "open_gate",
        /// The kubelet was made to look at an open gate once more.
        Nudge => "nudge",
        /// Sidecars were stopped.
        Stop => "stop",
        /// The pod was ended by its deadline.
        End => "end",
        /// The pod was deleted before a step had started, so that Tekton makes it anew.
        Replace => "replace",
    }
}

closed_label! {
    /// How it went.
    ActionResult, "result" {
        /// The API server took it.
        Done => "done",
        /// The pod had changed: it was looked at again.
        MovedOn => "moved_on",
        /// The API server will not have it.
        Refused => "refused",
        /// The API server could not answer, after several tries.
        Unanswered => "unanswered",
    }
}

closed_label! {
    /// How an Event went.
    EventResult, "result" {
        /// It is there.
        Written => "written",
        /// It was there already.
        Known => "known",
        /// It could not be written.
        Failed => "failed",
    }
}

closed_label! {
    /// Why a stop was refused, by the answer's status code.
    Refusal, "code" {
        /// 403: no permission, a quota, or a policy.
        Forbidden => "forbidden",
        /// 422: the pod would not be valid, or a policy.
        Invalid => "invalid",
        /// Any other.
        Other => "other",
    }
}

closed_label! {
    /// What a live read of a TaskRun said of the cached verdict.
    VerdictRead, "result" {
        /// The same.
        Confirmed => "confirmed",
        /// There is no verdict, or another: the cache was behind.
        Refuted => "refuted",
        /// It may not be read.
        Unreadable => "unreadable",
        /// No answer.
        Unanswered => "unanswered",
    }
}

closed_label! {
    /// What is watched.
    Watched, "resource" {
        /// The pods of TaskRuns.
        Pods => "pods",
        /// TaskRuns.
        TaskRuns => "taskruns",
        /// Namespaces that opted out.
        Namespaces => "namespaces",
        /// Nodes.
        Nodes => "nodes",
    }
}

impl Closed for Reason {
    const NAME: &'static str = "reason";
    const ALL: &'static [Self] = &Reason::ALL;

    fn as_label(self) -> &'static str {
        self.as_str()
    }
}

/// Two labels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Two<A, B>(A, B);

impl<A: Closed, B: Closed> EncodeLabelSet for Two<A, B> {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), std::fmt::Error> {
        [(A::NAME, self.0.as_label()), (B::NAME, self.1.as_label())].encode(encoder)
    }
}

/// A counter for each pair of values, all of them at 0 from the start.
fn pairs<A: Closed, B: Closed>() -> Family<Two<A, B>, Counter> {
    let family = Family::default();
    for one in A::ALL {
        for other in B::ALL {
            drop(family.get_or_create(&Two(*one, *other)));
        }
    }
    family
}

/// The controller's metrics. Clones count into the same ones.
#[derive(Clone, Debug)]
pub struct Metrics {
    actions: Family<Two<ActionKind, ActionResult>, Counter>,
    events: Family<Two<Reason, EventResult>, Counter>,
    refusals: Counters<Refusal>,
    verdict_reads: Counters<VerdictRead>,
    watch_errors: Counters<Watched>,
    leader: Gauge,
    pods: Gauge,
    gates_shut: Gauge,
    native_possible: Gauge,
    native_refused_namespaces: Gauge,
    native_refusals: Counter,
    gate_wait: Histogram,
    gate_delay: Histogram,
    stop_delay: Histogram,
    end_delay: Histogram,
}

impl Metrics {
    /// Registers every family.
    pub fn register(registry: &mut Registry) -> Self {
        let refusals = "Stops of sidecars that the API server refused for good (permissions, policies, quotas), by class of status code";
        let verdict_reads = "Live reads of TaskRuns that confirm a verdict before anything is done on it; refuted means that the watch was behind";
        let watch_errors = "Errors of the controller's watches, by what is watched; a few at a time are normal";
        let metrics = Self {
            actions: pairs(),
            events: pairs(),
            refusals: Counters::register(registry, "kickstand_controller_refused_stops", refusals),
            verdict_reads: Counters::register(registry, "kickstand_controller_verdict_reads", verdict_reads),
            watch_errors: Counters::register(registry, "kickstand_controller_watch_errors", watch_errors),
            leader: Gauge::default(),
            pods: Gauge::default(),
            gates_shut: Gauge::default(),
            native_possible: Gauge::default(),
            native_refused_namespaces: Gauge::default(),
            native_refusals: Counter::default(),
            // Seconds to an hour: a pod waits for its sidecars' start.
            gate_wait: Histogram::new([0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 3600.0]),
            // Milliseconds to seconds: our own part.
            gate_delay: Histogram::new([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            stop_delay: Histogram::new([0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            // From the kubelet's floor to a deaf sidecar's grace and beyond.
            end_delay: Histogram::new([1.0, 2.0, 3.0, 4.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0]),
        };
        registry.register(
            "kickstand_controller_actions",
            "Changes that the controller made, or tried to make, to pods: by what was done and how the API server answered",
            metrics.actions.clone(),
        );
        registry.register(
            "kickstand_controller_events",
            "Events written on pods, by reason and result",
            metrics.events.clone(),
        );
        registry.register(
            "kickstand_controller_is_leader",
            "1 while this replica holds the Lease and acts, else 0; the sum over replicas should be 1",
            metrics.leader.clone(),
        );
        registry.register(
            "kickstand_controller_pods",
            "Pods of TaskRuns that have not ended, as this replica sees them",
            metrics.pods.clone(),
        );
        registry.register(
            "kickstand_controller_gates_shut",
            "Pods whose first step is held now, as this replica sees them",
            metrics.gates_shut.clone(),
        );
        metrics.register_native(registry);
        registry.register(
            "kickstand_gate_wait_seconds",
            "From a pod's start to the opening of its gate: what its sidecars cost the run",
            metrics.gate_wait.clone(),
        );
        registry.register(
            "kickstand_gate_open_delay_seconds",
            "From the watch event that showed the last sidecar ready to the API server's answer to the opening of the gate: what Kickstand itself costs the run",
            metrics.gate_delay.clone(),
        );
        registry.register(
            "kickstand_stop_delay_seconds",
            "From the decision to stop sidecars to the API server's answer, the live read of the TaskRun included",
            metrics.stop_delay.clone(),
        );
        registry.register(
            "kickstand_pod_end_delay_seconds",
            "From the watch event that showed all steps done to the one that showed the pod ended",
            metrics.end_delay.clone(),
        );
        metrics
    }

    fn register_native(&self, registry: &mut Registry) {
        registry.register(
            "kickstand_controller_native_possible",
            "1 while this replica leads and says that pods may have native sidecars: every node and the API server can run them, and they were not refused in several namespaces; else 0",
            self.native_possible.clone(),
        );
        registry.register(
            "kickstand_controller_native_refused_namespaces",
            "Namespaces in which no pod gets native sidecars now, since the API server refused one there within the hour; 0 unless this replica leads",
            self.native_refused_namespaces.clone(),
        );
        registry.register(
            "kickstand_controller_native_refusals",
            "TaskRuns whose pod the API server refused since a webhook takes restartPolicy away from native sidecars; any is one too many",
            self.native_refusals.clone(),
        );
    }

    pub(crate) fn action(&self, kind: ActionKind, result: ActionResult) {
        self.actions.get_or_create(&Two(kind, result)).inc();
    }

    pub(crate) fn event(&self, reason: Reason, result: EventResult) {
        self.events.get_or_create(&Two(reason, result)).inc();
    }

    pub(crate) fn stop_refused(&self, code: Refusal) {
        self.refusals.count(code);
    }

    pub(crate) fn verdict_read(&self, result: VerdictRead) {
        self.verdict_reads.count(result);
    }

    pub(crate) fn watch_error(&self, resource: Watched) {
        self.watch_errors.count(resource);
    }

    pub(crate) fn leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }

    pub(crate) fn holds(&self, pods: usize, gates_shut: usize) {
        self.pods.set(i64::try_from(pods).unwrap_or(i64::MAX));
        self.gates_shut.set(i64::try_from(gates_shut).unwrap_or(i64::MAX));
    }

    /// Whether pods may have native sidecars, and in how many namespaces they may not.
    pub(crate) fn native(&self, possible: bool, refused: usize) {
        self.native_possible.set(i64::from(possible));
        self.native_refused_namespaces.set(i64::try_from(refused).unwrap_or(i64::MAX));
    }

    pub(crate) fn native_refused(&self) {
        self.native_refusals.inc();
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
