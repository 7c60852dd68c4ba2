//! The webhook's metrics, one struct for each module that counts.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{Counters, closed_label};
use crate::pod::mutate;
use crate::pod::native::TektonWait;

closed_label! {
    /// What became of a review that was answered.
    Decision, "decision" {
        /// The first step waits for its sidecars.
        Gated => "gated",
        /// Not the pod of a TaskRun.
        NotATaskRun => "not_a_task_run",
        /// Opted out by the pod's label.
        OptedOut => "opted_out",
        /// Annotated not to be gated.
        GateOff => "gate_off",
        /// No sidecar to wait for.
        NoSidecar => "no_sidecar",
        /// No step that runs first.
        NoFirstStep => "no_first_step",
        /// No live controller is known.
        NoController => "no_controller",
        /// Gates could not be opened in its namespace lately.
        GatesRefused => "gates_refused",
        /// More containers than any pod of Tekton's has.
        TooManyContainers => "too_many_containers",
        /// Something of another's stands where the gate would.
        InTheWay => "in_the_way",
        /// Arguments that we do not know how to change safely.
        UnknownEntrypoint => "unknown_entrypoint",
        /// On the early call: injectors were asked for native sidecars (or none had to be).
        Asked => "asked",
        /// On the early call: nobody was asked, since the pod stays classic.
        NotAsked => "not_asked",
        /// The review is not about the creation of a pod.
        NotAPodCreation => "not_a_pod_creation",
        /// The object is no Pod as this build knows it.
        Untypable => "untypable",
        /// Our own fault.
        InternalError => "internal_error",
    }
}

impl From<&mutate::Decision> for Decision {
    fn from(decision: &mutate::Decision) -> Self {
        use mutate::Ungated;
        match decision {
            mutate::Decision::Gated(_) => Self::Gated,
            mutate::Decision::Ungated(why) => match why {
                Ungated::NotOurs(_) => Self::NotATaskRun,
                Ungated::OptedOut => Self::OptedOut,
                Ungated::GateOff => Self::GateOff,
                Ungated::NobodyToAwait => Self::NoSidecar,
                Ungated::NoFirstStep => Self::NoFirstStep,
                Ungated::NoController => Self::NoController,
                Ungated::GatesRefused => Self::GatesRefused,
                Ungated::TooManyContainers(_) => Self::TooManyContainers,
                Ungated::InTheWay(_) => Self::InTheWay,
                Ungated::Entrypoint(_) => Self::UnknownEntrypoint,
            },
        }
    }
}

impl Decision {
    /// Nothing that anybody has to hear of: see [`mutate::Ungated::is_silent`].
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(
            self,
            Self::NotATaskRun | Self::OptedOut | Self::GateOff | Self::NoSidecar | Self::Asked | Self::NotAsked
        )
    }
}

closed_label! {
    /// What became of the sidecars of a pod.
    NativeOutcome, "outcome" {
        /// Those that the Task declares became native.
        Moved => "moved",
        /// They were native already, and Tekton's own wait was taken out.
        Native => "native",
        /// They were brought back: another webhook had taken their `restartPolicy` away.
        BroughtBack => "brought_back",
        /// They stay classic.
        Classic => "classic",
    }
}

impl NativeOutcome {
    /// `None` where there is no sidecar that it could be said of.
    #[must_use]
    pub fn of(mutation: &mutate::Mutation) -> Option<Self> {
        if !mutation.brought_back.is_empty() {
            return Some(Self::BroughtBack);
        }
        match &mutation.moved {
            Ok(moved) if !moved.is_empty() => Some(Self::Moved),
            _ if mutation.tekton_wait == TektonWait::Skipped => Some(Self::Native),
            Err(_) if matches!(mutation.decision, mutate::Decision::Gated(_)) => Some(Self::Classic),
            _ => None,
        }
    }
}

closed_label! {
    /// Why a request got an HTTP error instead of a review.
    Refusal, "reason" {
        /// 404.
        NotFound => "not_found",
        /// 405.
        Method => "method",
        /// 415.
        ContentType => "content_type",
        /// 413.
        TooLarge => "too_large",
        /// 400: the body broke off.
        BodyBroken => "body_broken",
        /// 400: no AdmissionReview in JSON.
        Malformed => "malformed",
        /// 400: a version of AdmissionReview that this build does not speak.
        ApiVersion => "api_version",
        /// 400: a review without a request, or a request without a uid.
        NoRequest => "no_request",
        /// 503.
        Overloaded => "overloaded",
        /// 504.
        Deadline => "deadline",
    }
}

closed_label! {
    /// Why a TLS handshake came to nothing.
    HandshakeFailure, "reason" {
        /// The client spoke something else.
        NotTls => "not_tls",
        /// The client does not take our certificate.
        Untrusted => "untrusted",
        /// No version or cipher in common.
        Incompatible => "incompatible",
        /// The client took too long.
        Timeout => "timeout",
        /// The client went away.
        Closed => "closed",
        /// We have no certificate yet.
        NoCertificate => "no_certificate",
        /// Anything else.
        Other => "other",
    }
}

closed_label! {
    /// Why the controller's Lease could not be read.
    LeaseFailure, "reason" {
        /// There is none.
        NotFound => "not_found",
        /// We may not.
        Forbidden => "forbidden",
        /// The API server took too long.
        Timeout => "timeout",
        /// Anything else.
        Other => "other",
    }
}

/// What `admission` counts.
#[derive(Clone, Debug)]
pub struct AdmissionMetrics {
    /// Reviews that were answered.
    pub reviews: Counters<Decision>,
    /// What became of pods' sidecars.
    pub native: Counters<NativeOutcome>,
    /// Requests that got an HTTP error.
    pub refusals: Counters<Refusal>,
    /// Reviews being worked on.
    pub in_flight: Gauge,
    duration: Histogram,
}

/// From a pod's usual fraction of a millisecond up to beyond the API server's patience.
const BUCKETS: [f64; 13] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

impl AdmissionMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reviews: Counters::register(
                registry,
                "kickstand_webhook_reviews",
                "AdmissionReviews that were answered, by what was decided of the pod; each of them was allowed",
            ),
            native: Counters::register(
                registry,
                "kickstand_webhook_native",
                "AdmissionReviews of pods with sidecars, by what became of them: moved to the kubelet, native already, \
                 brought back from a webhook that takes restartPolicy away, or classic",
            ),
            refusals: Counters::register(
                registry,
                "kickstand_webhook_refusals",
                "Requests that got an HTTP error instead of a review; the API server then creates the pod as it is",
            ),
            in_flight: Gauge::default(),
            duration: Histogram::new(BUCKETS),
        };
        registry.register(
            "kickstand_webhook_reviews_in_flight",
            "AdmissionReviews being read or decided now",
            metrics.in_flight.clone(),
        );
        registry.register_with_unit(
            "kickstand_webhook_review_duration",
            "Time from a request's headers to its answer, of reviews that were answered",
            Unit::Seconds,
            metrics.duration.clone(),
        );
        metrics
    }

    /// A review was answered.
    pub fn reviewed(&self, decision: Decision, took: Duration) {
        self.reviews.count(decision);
        self.duration.observe(took.as_secs_f64());
    }
}

/// What `server` counts.
#[derive(Clone, Debug, Default)]
pub struct ServerMetrics {
    /// Open connections, those in their handshake included.
    pub connections: Gauge,
    /// Connections closed at once: there were too many.
    pub connections_refused: Counter,
    /// Handshakes that came to nothing.
    pub handshake_failures: Counters<HandshakeFailure>,
}

impl ServerMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            handshake_failures: Counters::register(
                registry,
                "kickstand_webhook_tls_handshake_failures",
                "TLS handshakes that came to nothing; \"untrusted\": the caller does not take our certificate, so that the API server creates pods as they are",
            ),
            ..Self::default()
        };
        registry.register(
            "kickstand_webhook_connections",
            "Open connections of the webhook's listener",
            metrics.connections.clone(),
        );
        registry.register(
            "kickstand_webhook_connections_refused",
            "Connections that were closed at once because too many were open",
            metrics.connections_refused.clone(),
        );
        metrics
    }
}

/// What `tls` counts.
#[derive(Clone, Debug, Default)]
pub struct TlsMetrics {
    /// Unix time at which the first certificate of the served chain expires; 0 = there is none yet.
    pub not_after: Gauge,
    /// Certificates taken into use, the first included.
    pub reloads: Counter,
    /// Looks at the directory that found no usable pair.
    pub reload_failures: Counter,
}

impl TlsMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_with_unit(
            "kickstand_webhook_certificate_not_after_timestamp",
            "Unix time at which the served certificate (or the first of its chain) expires; 0: there is none yet",
            Unit::Seconds,
            metrics.not_after.clone(),
        );
        registry.register(
            "kickstand_webhook_certificate_reloads",
            "Certificates that were taken into use, the first included",
            metrics.reloads.clone(),
        );
        registry.register(
            "kickstand_webhook_certificate_reload_failures",
            "Looks at the certificate's files that found no usable pair; rises as long as that lasts, and the last good one is served",
            metrics.reload_failures.clone(),
        );
        metrics
    }
}

/// What `liveness` counts.
#[derive(Clone, Debug, Default)]
pub struct LivenessMetrics {
    /// 1 while a controller is known to be alive.
    pub alive: Gauge,
    /// Reads of the Lease that failed.
    pub failures: Counters<LeaseFailure>,
}

impl LivenessMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            alive: Gauge::default(),
            failures: Counters::register(
                registry,
                "kickstand_webhook_lease_read_failures",
                "Reads of the controller's Lease that failed; while that lasts the controller is soon held to be dead, and no pod is gated",
            ),
        };
        registry.register(
            "kickstand_webhook_controller_alive",
            "1 while the webhook knows of a live controller, which would open gates; 0: no pod is gated",
            metrics.alive.clone(),
        );
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Closed, registry};
    use crate::pod::entrypoint::Unknown;
    use crate::pod::mutate::Ungated;
    use crate::pod::tekton::NotOurs;

    #[test]
    fn a_decision_is_what_the_pure_core_says_it_is() {
        for why in [
            Ungated::NotOurs(NotOurs::NoLabel),
            Ungated::OptedOut,
            Ungated::GateOff,
            Ungated::NobodyToAwait,
            Ungated::NoFirstStep,
            Ungated::NoController,
            Ungated::GatesRefused,
            Ungated::TooManyContainers(257),
            Ungated::InTheWay("way"),
            Ungated::Entrypoint(Unknown::WaitsForExistence),
        ] {
            let expected = (why.as_label(), why.is_silent());
            let decision = Decision::from(&mutate::Decision::Ungated(why));
            assert_eq!((decision.as_label(), decision.is_silent()), expected);
        }
    }

    #[test]
    fn every_series_stands_at_zero_before_anything_happens() {
        let mut registry = registry();
        AdmissionMetrics::register(&mut registry);
        ServerMetrics::register(&mut registry);
        TlsMetrics::register(&mut registry);
        LivenessMetrics::register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "kickstand_build_info{version=",
            "kickstand_webhook_reviews_total{decision=\"gated\"} 0",
            "kickstand_webhook_refusals_total{reason=\"deadline\"} 0",
            "kickstand_webhook_tls_handshake_failures_total{reason=\"untrusted\"} 0",
            "kickstand_webhook_certificate_not_after_timestamp_seconds 0",
            "kickstand_webhook_certificate_reload_failures_total 0",
            "kickstand_webhook_controller_alive 0",
            "kickstand_webhook_lease_read_failures_total{reason=\"forbidden\"} 0",
            "kickstand_webhook_review_duration_seconds_count 0",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
    }
}
