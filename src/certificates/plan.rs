//! What to do about the certificates that were found: pure but for the keys it makes.

use jiff::Timestamp;

use super::authority::{self, Flaw, MakeError, Pair};

/// What is found in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The CA's Secret: the CA of today, then older ones that may still have signed what is served.
    pub ca: Pair,
    /// The webhook's Secret.
    pub leaf: Pair,
    /// The CA of today is in every `caBundle` already.
    pub published: bool,
}

/// What is to be written, in this order: the CA, the `caBundle`, and only then what it signed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// A new CA, and why; its bundle holds the older ones that are still valid.
    pub ca: Option<(Pair, Flaw)>,
    /// A new certificate for the webhook, and why.
    pub leaf: Option<(Pair, Flaw)>,
    /// A certificate is due that waits until the CA that signs it is trusted.
    pub again: bool,
}

/// Compares what is there with what should be.
///
/// # Errors
/// If a certificate cannot be made.
pub fn plan(found: &Found, names: &[String], now: Timestamp) -> Result<Plan, MakeError> {
    let mut plan = Plan::default();
    let mut ca = found.ca.clone();
    if let Err(flaw) = authority::check_ca(&found.ca, now) {
        ca = authority::make_ca(now)?;
        for older in authority::still_valid(&found.ca.certificate, &ca.certificate, now) {
            ca.certificate.push_str(&older);
        }
        plan.ca = Some((ca.clone(), flaw));
    }
    if let Err(flaw) = authority::check_leaf(&found.leaf, &ca, names, now) {
        // One that still serves is trusted by way of the older CA; its successor has to wait until the new one is.
        if flaw.still_serves() && (plan.ca.is_some() || !found.published) {
            plan.again = true;
        } else {
            plan.leaf = Some((authority::make_leaf(&ca, names, now)?, flaw));
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;
    use crate::certificates::authority::{CA_LIFETIME, LEAF_LIFETIME, make_ca, make_leaf};

    fn now() -> Timestamp {
        "2026-12-01T12:00:00Z".parse().unwrap()
    }

    fn names() -> Vec<String> {
        crate::certificates::names("kickstand-webhook", "kickstand-system")
    }

    fn nothing() -> Pair {
        Pair { certificate: String::new(), key: String::new() }
    }

    /// A CA and a leaf that were made `age` ago.
    fn found(age: SignedDuration) -> Found {
        let ca = make_ca(now() - age).unwrap();
        let leaf = make_leaf(&ca, &names(), now() - age).unwrap();
        Found { ca, leaf, published: true }
    }

    fn planned(found: &Found) -> Plan {
        plan(found, &names(), now()).unwrap()
    }

    #[test]
    fn an_empty_cluster_gets_both() {
        let plan = planned(&Found { ca: nothing(), leaf: nothing(), published: false });
        assert_eq!(plan.ca.as_ref().map(|(_, flaw)| flaw), Some(&Flaw::Missing));
        assert_eq!(plan.leaf.as_ref().map(|(_, flaw)| flaw), Some(&Flaw::Missing));
        let (ca, leaf) = (plan.ca.unwrap().0, plan.leaf.unwrap().0);
        assert_eq!(planned(&Found { ca, leaf, published: true }), Plan::default());
    }

    #[test]
    fn what_was_made_just_now_is_left_alone() {
        assert_eq!(planned(&found(SignedDuration::ZERO)), Plan::default());
    }

    #[test]
    fn a_certificate_is_renewed_when_two_thirds_of_its_life_are_over() {
        assert_eq!(planned(&found(LEAF_LIFETIME / 2)), Plan::default());
        let plan = planned(&found(LEAF_LIFETIME * 7 / 10));
        assert!(plan.ca.is_none());
        assert!(matches!(plan.leaf, Some((_, Flaw::Due(_)))));
    }

    #[test]
    fn a_new_ca_is_published_beside_the_old_one_before_it_signs() {
        let mut found = found(CA_LIFETIME * 7 / 10);
        found.leaf = make_leaf(&found.ca, &names(), now()).unwrap();
        let plan = planned(&found);
        let (ca, flaw) = plan.ca.unwrap();
        assert!(matches!(flaw, Flaw::Due(_)));
        assert_eq!((plan.leaf, plan.again), (None, true));
        assert!(ca.certificate.contains(&found.ca.certificate.replace("\r\n", "\n")), "the old CA is still trusted");

        let unpublished = planned(&Found { ca: ca.clone(), published: false, ..found.clone() });
        assert_eq!((unpublished.leaf, unpublished.again), (None, true));
        let published = planned(&Found { ca, ..found });
        assert!(matches!(published.leaf, Some((_, Flaw::OtherIssuer))));
    }

    #[test]
    fn an_expired_ca_is_dropped_and_its_leaf_replaced_at_once() {
        let found = found(CA_LIFETIME * 2);
        let plan = planned(&found);
        let (ca, flaw) = plan.ca.unwrap();
        assert!(matches!(flaw, Flaw::NotNow { .. }));
        assert_eq!(ca.certificate.matches("BEGIN CERTIFICATE").count(), 1);
        assert!(plan.leaf.is_some());
    }

    #[rstest::rstest]
    #[case::no_pem("junk", None)]
    #[case::half_a_pem("-----BEGIN CERTIFICATE-----\nMIIB", None)]
    #[case::a_key_of_another("", Some("the key is another certificate's"))]
    fn what_cannot_be_used_is_replaced_at_once(#[case] certificate: &str, #[case] why: Option<&'static str>) {
        let mut found = found(SignedDuration::ZERO);
        if certificate.is_empty() {
            found.leaf.key = make_ca(now()).unwrap().key;
        } else {
            found.leaf.certificate = certificate.to_owned();
        }
        let (leaf, flaw) = planned(&found).leaf.unwrap();
        assert_eq!(flaw, Flaw::Unusable(why.unwrap_or("no certificate in it")));
        assert_eq!(planned(&Found { leaf, ..found }), Plan::default());
    }

    #[test]
    fn a_certificate_of_another_service_is_replaced() {
        let mut found = found(SignedDuration::ZERO);
        found.leaf = make_leaf(&found.ca, &["other.ns.svc".to_owned()], now()).unwrap();
        assert!(matches!(planned(&found).leaf, Some((_, Flaw::OtherName(_)))));
    }

    #[test]
    fn a_clock_that_was_wrong_when_it_was_made_does_not_keep_it() {
        let found = found(-SignedDuration::from_hours(48));
        let plan = planned(&found);
        assert!(matches!(plan.ca, Some((_, Flaw::NotNow { .. }))));
        assert!(plan.leaf.is_some());
    }

    #[test]
    fn what_is_made_is_what_a_tls_client_accepts() {
        let found = found(SignedDuration::ZERO);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(rustls::pki_types::CertificateDer::from_pem_slice(found.ca.certificate.as_bytes()).unwrap()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
        let leaf = rustls::pki_types::CertificateDer::from_pem_slice(found.leaf.certificate.as_bytes()).unwrap();
        let name = "kickstand-webhook.kickstand-system.svc".try_into().unwrap();
        let time = rustls::pki_types::UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            now().as_second().try_into().unwrap(),
        ));
        verifier.verify_server_cert(&leaf, &[], &name, &[], time).unwrap();
    }
}
