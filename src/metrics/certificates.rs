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
        let until = "Until when the certificate that the controller keeps is valid, in seconds since the epoch; 0 on a replica that does not lead.";
        registry.register_with_unit("kickstand_ca_not_after", until, Unit::Seconds, metrics.ca_until.clone());
        registry.register_with_unit(
            "kickstand_webhook_certificate_not_after",
            until,
            Unit::Seconds,
            metrics.leaf_until.clone(),
        );
        registry.register("kickstand_ca_made", "CAs made.", metrics.made[0].clone());
        registry.register(
            "kickstand_webhook_certificates_made",
            "Certificates made for the webhook.",
            metrics.made[1].clone(),
        );
        registry.register(
            "kickstand_certificate_failures",
            "Attempts to look after the certificates that failed: an object could not be read or written.",
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
