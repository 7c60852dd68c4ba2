//! The listener's certificate: read from a directory, looked at again every few seconds, swapped without dropping a
//! connection.
//!
//! Polled, not watched: the kubelet replaces a mounted Secret by renaming the symlink `..data`, which a watch on the files
//! sees once or never. What cannot be used (half-written, a key of another certificate) is said, and the last good pair
//! stays.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::clock;
use crate::metrics::webhook::TlsMetrics;
use crate::readiness::Token;

/// The certificate, and what it is signed by, the leaf first: the names of a Secret of type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
/// Its private key.
const KEY: &str = "tls.key";
/// A failure that lasts is told again after that long.
const REMIND: Duration = Duration::from_secs(30);

/// Where the certificate is.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A directory with `tls.crt` and `tls.key`, in PEM.
    pub directory: PathBuf,
    /// How often it is looked at.
    pub every: Duration,
}

impl Settings {
    /// Looks at `directory` every 5 seconds.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), every: Duration::from_secs(5) }
    }
}

/// The certificate that new connections get; clones follow the same one.
#[derive(Clone)]
pub struct Tls(watch::Receiver<Option<Arc<ServerConfig>>>);

impl Tls {
    /// What a new connection is to be served with; `None` until there is a certificate.
    #[must_use]
    pub fn config(&self) -> Option<Arc<ServerConfig>> {
        self.0.borrow().clone()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("has_certificate", &self.0.borrow().is_some()).finish()
    }
}

/// Why a directory's content cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A file is not there, or not for us.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not whole, or something else altogether.
    #[error("{file} is not in PEM: {source}")]
    Pem {
        /// Which.
        file: &'static str,
        /// What is wrong.
        source: pem::Error,
    },
    /// The certificate is in PEM, but not in X.509.
    #[error("{CERTIFICATE} holds something that is no certificate: {0}")]
    Certificate(String),
    /// The two files do not belong together, or are of a kind that we cannot serve.
    #[error("{CERTIFICATE} and {KEY} cannot be served: {0}")]
    Pair(#[from] rustls::Error),
}

/// A pair that can be served.
struct Pair {
    config: Arc<ServerConfig>,
    /// When all of the chain is valid.
    not_before: Timestamp,
    not_after: Timestamp,
    subject: String,
}

/// The bytes of both files: what is compared to see a change.
#[derive(PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// How the served certificate stands to the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Validity {
    Early,
    Valid,
    Expired,
}

/// Looks after the certificate: see [`Keeper::run`].
pub struct Keeper {
    settings: Settings,
    metrics: TlsMetrics,
    current: watch::Sender<Option<Arc<ServerConfig>>>,
    /// What is served, and how its validity was last told.
    serving: Option<(Files, Pair, Option<Validity>)>,
    /// What was last told to be wrong, and when.
    complaint: Option<(String, Instant)>,
}

/// A certificate that is kept as new as the directory, once the keeper runs.
#[must_use]
pub fn from_directory(settings: Settings, metrics: TlsMetrics) -> (Tls, Keeper) {
    let (current, follow) = watch::channel(None);
    (Tls(follow), Keeper { settings, metrics, current, serving: None, complaint: None })
}

impl Keeper {
    /// Looks at the directory until `stop`. `waiting` is dropped at the first certificate that can be served; until then
    /// what is missing is told twice a minute.
    pub async fn run(mut self, waiting: Token, stop: CancellationToken) {
        let mut waiting = Some(waiting);
        loop {
            self.look().await;
            if self.serving.is_some() {
                drop(waiting.take());
            }
            if stop.run_until_cancelled(tokio::time::sleep(self.settings.every)).await.is_none() {
                return;
            }
        }
    }

    async fn look(&mut self) {
        match read(&self.settings.directory).await {
            Ok(files) if self.serving.as_ref().is_some_and(|(serving, ..)| *serving == files) => self.complaint = None,
            Ok(files) => match Pair::of(&files) {
                Ok(pair) => self.take(files, pair),
                Err(why) => self.complain(&why),
            },
            Err(why) => self.complain(&why),
        }
        self.tell_validity();
    }

    fn take(&mut self, files: Files, pair: Pair) {
        info!(subject = pair.subject, not_before = %pair.not_before, not_after = %pair.not_after, "serving a certificate");
        self.metrics.reloads.inc();
        self.metrics.not_after.set(pair.not_after.as_second());
        self.current.send_replace(Some(Arc::clone(&pair.config)));
        self.serving = Some((files, pair, None));
        self.complaint = None;
    }

    fn complain(&mut self, why: &Unusable) {
        self.metrics.reload_failures.inc();
        let why = why.to_string();
        if self.complaint.as_ref().is_some_and(|(last, told)| *last == why && told.elapsed() < REMIND) {
            return;
        }
        let directory = self.settings.directory.display();
        if let Some((_, pair, _)) = &self.serving {
            let not_after = pair.not_after;
            error!(%directory, why, %not_after, "no usable certificate: still serving the last good one");
        } else {
            warn!(%directory, why, "no usable certificate yet: not ready, waiting for it");
        }
        self.complaint = Some((why, Instant::now()));
    }

    /// An expired certificate is served all the same: the caller decides whom it trusts, and a refused connection would
    /// tell it less.
    fn tell_validity(&mut self) {
        let Some((_, pair, told)) = &mut self.serving else { return };
        let validity = pair.validity(clock::now());
        if told.replace(validity) == Some(validity) {
            return;
        }
        let (not_before, not_after) = (pair.not_before, pair.not_after);
        match validity {
            Validity::Valid => {}
            Validity::Early => {
                warn!(%not_before, %not_after, "the served certificate is not valid yet: is the clock right?");
            }
            Validity::Expired => {
                error!(%not_before, %not_after, "the served certificate has expired: the API server does not take it, and pods are created as they are");
            }
        }
    }
}

/// Reads both files of one version: through the directory that the kubelet's `..data` points to now, lest it be swapped
/// between one file and the other; again if that directory has gone meanwhile.
async fn read(directory: &Path) -> Result<Files, Unusable> {
    let mut version = current(directory).await;
    loop {
        let files = read_version(directory, &version).await;
        let now = current(directory).await;
        if files.is_ok() || now == version {
            return files;
        }
        version = now;
    }
}

/// Where the files are now; the directory itself if nobody swaps versions of it.
async fn current(directory: &Path) -> PathBuf {
    tokio::fs::canonicalize(directory.join("..data")).await.unwrap_or_else(|_| directory.to_owned())
}

async fn read_version(directory: &Path, version: &Path) -> Result<Files, Unusable> {
    let file = async |name| {
        let file = tokio::fs::read(version.join(name)).await;
        // By the name that people know.
        file.map_err(|source| Unusable::Read { path: directory.join(name), source })
    };
    Ok(Files { certificate: file(CERTIFICATE).await?, key: file(KEY).await? })
}

impl Pair {
    fn of(files: &Files) -> Result<Self, Unusable> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&files.certificate)
            .collect::<Result<_, _>>()
            .and_then(|chain: Vec<_>| if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) })
            .map_err(|source| Unusable::Pem { file: CERTIFICATE, source })?;
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|source| Unusable::Pem { file: KEY, source })?;

        let (mut not_before, mut not_after) = (Timestamp::MIN, Timestamp::MAX);
        let mut subject = None;
        for certificate in &chain {
            let (_, parsed) =
                X509Certificate::from_der(certificate).map_err(|why| Unusable::Certificate(why.to_string()))?;
            let validity = parsed.validity();
            // "Never" is written as the last second of 9999, which lies beyond what a Timestamp holds.
            let time = |second, beyond| Timestamp::from_second(second).unwrap_or(beyond);
            not_before = not_before.max(time(validity.not_before.timestamp(), Timestamp::MIN));
            not_after = not_after.min(time(validity.not_after.timestamp(), Timestamp::MAX));
            subject.get_or_insert_with(|| parsed.subject().to_string());
        }

        // Named here, so that no order of start-up decides which cryptography is used.
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), not_before, not_after, subject: subject.unwrap_or_default() })
    }

    fn validity(&self, now: Timestamp) -> Validity {
        if now < self.not_before {
            Validity::Early
        } else if now > self.not_after {
            Validity::Expired
        } else {
            Validity::Valid
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn files() -> Files {
        signed(&CertificateParams::new(vec!["kickstand.test".into()]).unwrap())
    }

    fn signed(params: &CertificateParams) -> Files {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Files { certificate: certificate.pem().into_bytes(), key: key.serialize_pem().into_bytes() }
    }

    #[test]
    fn a_whole_pair_can_be_served() {
        let pair = Pair::of(&files()).unwrap();
        assert!(pair.not_before < pair.not_after);
        assert_eq!(pair.validity(pair.not_before), Validity::Valid);
        assert_eq!(pair.validity(Timestamp::MIN), Validity::Early);
        assert_eq!(pair.validity(Timestamp::MAX), Validity::Expired);
    }

    #[test]
    fn a_certificate_that_never_expires_can_be_served() {
        let mut params = CertificateParams::new(vec!["kickstand.test".into()]).unwrap();
        params.not_after = rcgen::date_time_ymd(9999, 12, 31);
        assert_eq!(Pair::of(&signed(&params)).unwrap().not_after, Timestamp::MAX);
    }

    #[test]
    fn what_is_not_a_whole_pair_cannot() {
        let (good, other) = (files(), files());
        let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
        let cases = [
            ("another's key", good.certificate.clone(), other.key),
            ("half a certificate", half(&good.certificate), good.key.clone()),
            ("half a key", good.certificate.clone(), half(&good.key)),
            ("an empty certificate", Vec::new(), good.key.clone()),
            ("an empty key", good.certificate.clone(), Vec::new()),
            ("no PEM", b"hello".to_vec(), good.key.clone()),
            ("swapped files", good.key.clone(), good.certificate.clone()),
            (
                "no X.509",
                b"-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n".to_vec(),
                good.key.clone(),
            ),
        ];
        for (what, certificate, key) in cases {
            let why = Pair::of(&Files { certificate, key }).err().unwrap_or_else(|| panic!("{what} was taken"));
            assert!(why.to_string().contains("tls."), "{what}: \"{why}\" names no file");
        }
    }
}
