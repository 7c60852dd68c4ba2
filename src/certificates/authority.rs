//! Making and checking certificates. Pure but for the random numbers of a key.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long a CA is valid.
pub const CA_LIFETIME: SignedDuration = SignedDuration::from_hours(5 * 365 * 24);
/// How long the webhook's certificate is valid.
pub const LEAF_LIFETIME: SignedDuration = SignedDuration::from_hours(90 * 24);
/// Valid since before it was made: clocks differ.
const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate: {0}")]
pub struct MakeError(String);

/// A certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate; a CA's may be followed by older ones.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for Pair {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// What is wrong with a certificate that was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Nothing there.
    #[error("there is none yet")]
    Missing,
    /// No PEM, no certificate, no key, or a key of another certificate.
    #[error("it cannot be used ({0})")]
    Unusable(&'static str),
    /// Not valid now.
    #[error("it is not valid now (from {from} to {until})")]
    NotNow {
        /// Valid from.
        from: Timestamp,
        /// Valid until.
        until: Timestamp,
    },
    /// Two thirds of its life are over.
    #[error("it is to be renewed before it ends at {0}")]
    Due(Timestamp),
    /// Not made out to these names.
    #[error("it is not made out to {0}")]
    OtherName(String),
    /// Signed by no CA, or an older one.
    #[error("it is not signed by the CA of today")]
    OtherIssuer,
}

impl Flaw {
    /// Still good enough to serve, while its successor is prepared.
    #[must_use]
    pub fn still_serves(&self) -> bool {
        matches!(self, Self::Due(_) | Self::OtherIssuer)
    }
}

/// Makes a CA.
///
/// # Errors
/// If the system has no random numbers.
pub fn make_ca(now: Timestamp) -> Result<Pair, MakeError> {
    let key = KeyPair::generate().map_err(make_error)?;
    let mut params = params(Vec::new(), "kickstand CA", now, CA_LIFETIME)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(make_error)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Makes the webhook's certificate, made out to `names`, signed by the first certificate of `ca`.
///
/// # Errors
/// If `ca` cannot be read, or the system has no random numbers.
pub fn make_leaf(ca: &Pair, names: &[String], now: Timestamp) -> Result<Pair, MakeError> {
    let issuer_key = KeyPair::from_pem(&ca.key).map_err(make_error)?;
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, issuer_key).map_err(make_error)?;
    let key = KeyPair::generate().map_err(make_error)?;
    let name = names.first().map_or("kickstand", String::as_str);
    let mut params = params(names.to_vec(), name, now, LEAF_LIFETIME)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer).map_err(make_error)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Until when the first certificate of a PEM is valid.
#[must_use]
pub fn valid_until(pem: &str) -> Option<Timestamp> {
    let pem = pems(pem).next()?;
    let certificate = pem.parse_x509().ok()?;
    Some(validity(&certificate)?.1)
}

/// What, if anything, is wrong with the first certificate of a CA's PEM.
///
/// # Errors
/// What is wrong with it.
pub fn check_ca(ca: &Pair, now: Timestamp) -> Result<(), Flaw> {
    check(ca, now, |certificate| if certificate.is_ca() { Ok(()) } else { Err(Flaw::Unusable("it is no CA")) })
}

/// What, if anything, is wrong with the webhook's certificate.
///
/// # Errors
/// What is wrong with it.
pub fn check_leaf(leaf: &Pair, ca: &Pair, names: &[String], now: Timestamp) -> Result<(), Flaw> {
    check(leaf, now, |certificate| {
        let made_out_to = certificate.subject_alternative_name().ok().flatten();
        let made_out_to: Vec<&str> = made_out_to
            .iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(*name),
                _ => None,
            })
            .collect();
        if let Some(missing) = names.iter().find(|name| !made_out_to.contains(&name.as_str())) {
            return Err(Flaw::OtherName(missing.clone()));
        }
        let issuer = pems(&ca.certificate).next().ok_or(Flaw::OtherIssuer)?;
        let issuer = issuer.parse_x509().map_err(|_| Flaw::OtherIssuer)?;
        certificate.verify_signature(Some(issuer.public_key())).map_err(|_| Flaw::OtherIssuer)
    })
}

/// The certificates of a bundle that are still valid, but for those that `newest` holds already; each as PEM.
#[must_use]
pub fn still_valid(bundle: &str, newest: &str, now: Timestamp) -> Vec<String> {
    let known: Vec<Vec<u8>> = pems(newest).map(|pem| pem.contents).collect();
    pems(bundle)
        .filter(|pem| !known.contains(&pem.contents))
        .filter(|pem| {
            pem.parse_x509().ok().and_then(|certificate| validity(&certificate)).is_some_and(|(_, until)| now < until)
        })
        .map(|pem| encode(&pem.contents))
        .collect()
}

fn check(pair: &Pair, now: Timestamp, more: impl FnOnce(&X509Certificate<'_>) -> Result<(), Flaw>) -> Result<(), Flaw> {
    if pair.certificate.is_empty() && pair.key.is_empty() {
        return Err(Flaw::Missing);
    }
    let pem = pems(&pair.certificate).next().ok_or(Flaw::Unusable("no certificate in it"))?;
    let (_, certificate) = X509Certificate::from_der(&pem.contents).map_err(|_| Flaw::Unusable("no X.509 in it"))?;
    let key = KeyPair::from_pem(&pair.key).map_err(|_| Flaw::Unusable("no private key in it"))?;
    if key.subject_public_key_info() != certificate.public_key().raw {
        return Err(Flaw::Unusable("the key is another certificate's"));
    }
    let (from, until) = validity(&certificate).ok_or(Flaw::Unusable("no dates in it"))?;
    if now < from || now >= until {
        return Err(Flaw::NotNow { from, until });
    }
    more(&certificate)?;
    if now.duration_since(from) >= until.duration_since(from) * 2 / 3 { Err(Flaw::Due(until)) } else { Ok(()) }
}

fn params(
    names: Vec<String>,
    common_name: &str,
    now: Timestamp,
    lifetime: SignedDuration,
) -> Result<CertificateParams, MakeError> {
    let mut params = CertificateParams::new(names).map_err(make_error)?;
    let mut subject = DistinguishedName::new();
    // A common name has at most 64 characters (X.520); the names that count are the alternative ones.
    subject.push(DnType::CommonName, common_name.chars().take(64).collect::<String>());
    params.distinguished_name = subject;
    params.not_before = date(now - BACKDATED)?;
    params.not_after = date(now + lifetime)?;
    Ok(params)
}

fn date(time: Timestamp) -> Result<time::OffsetDateTime, MakeError> {
    time::OffsetDateTime::from_unix_timestamp(time.as_second()).map_err(make_error)
}

fn validity(certificate: &X509Certificate<'_>) -> Option<(Timestamp, Timestamp)> {
    let validity = certificate.validity();
    let read = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    Some((read(validity.not_before)?, read(validity.not_after)?))
}

/// The certificates of a PEM; what cannot be read ends it.
fn pems(text: &str) -> impl Iterator<Item = Pem> + '_ {
    Pem::iter_from_buffer(text.as_bytes()).map_while(Result::ok).filter(|pem| pem.label == "CERTIFICATE")
}

fn encode(der: &[u8]) -> String {
    pem::encode_config(
        &pem::Pem::new("CERTIFICATE", der),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}

#[allow(clippy::needless_pass_by_value)]
fn make_error(error: impl ToString) -> MakeError {
    MakeError(error.to_string())
}
