//! Metrics of the certificates that the controller keeps.

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// What `certificates` measures.
#[derive(Clone, Debug, Default)]
pub struct CertificateMetrics {
    ca_until: Gauge,
    leaf_until: Gauge,
    made: [Counter; 2],
    /// Looks that failed.
    pub failures: Counter,
}

impl CertificateMetrics {
    /// Registers the families.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let gauges = [
            ("kickstand_controller_ca_not_after_timestamp", "CA", &metrics.ca_until),
            ("kickstand_controller_certificate_not_after_timestamp", "webhook's certificate", &metrics.leaf_until),
        ];
        for (name, of, gauge) in gauges {
            let help = format!(
                "Unix time until which the {of} that the leader keeps is valid; 0 on a replica that does not lead"
            );
            registry.register_with_unit(name, help, Unit::Seconds, gauge.clone());
        }
        registry.register(
            "kickstand_controller_ca_made",
            "CAs that were made, the first included",
            metrics.made[0].clone(),
        );
        registry.register(
            "kickstand_controller_certificates_made",
            "Certificates that were made for the webhook, the first included",
            metrics.made[1].clone(),
        );
        registry.register(
            "kickstand_controller_certificate_failures",
            "Looks after the certificates that failed, since an object could not be read or written; tried again in seconds",
            metrics.failures.clone(),
        );
        metrics
    }

    pub(crate) fn made_ca(&self) {
        self.made[0].inc();
    }

    pub(crate) fn made_leaf(&self) {
        self.made[1].inc();
    }

    pub(crate) fn valid_until(&self, ca: Option<Timestamp>, leaf: Option<Timestamp>) {
        self.ca_until.set(ca.map_or(0, Timestamp::as_second));
        self.leaf_until.set(leaf.map_or(0, Timestamp::as_second));
    }
}
