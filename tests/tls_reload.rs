//! The certificate's files change under a running webhook, in the way the kubelet changes them: a new directory, and the
//! symlink `..data` renamed onto it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test ends there")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use kickstand::metrics::webhook::HandshakeFailure;
use kickstand::readiness::State;
use kickstand::{admission, clock, server, tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use support::{Log, Webhook, closed, connect, exchange, pod, review, until};

/// A CA of this test.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What a Secret would hold.
struct Pair {
    certificate: String,
    key: String,
    der: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self) -> Pair {
        self.issue_until(4000)
    }

    fn issue_until(&self, year: i32) -> Pair {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Pair { certificate: certificate.pem(), key: key.serialize_pem(), der: certificate.der().clone() }
    }

    fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }
}

/// A mounted Secret.
struct Mount {
    directory: TempDir,
    version: u32,
}

impl Mount {
    fn empty() -> Self {
        Self { directory: TempDir::new().unwrap(), version: 0 }
    }

    fn of(pair: &Pair) -> Self {
        let mut mount = Self::empty();
        mount.swap(&pair.certificate, &pair.key);
        mount
    }

    /// As the kubelet's atomic writer does it.
    fn swap(&mut self, certificate: &str, key: &str) {
        let at = |name: &str| self.directory.path().join(name);
        let old = format!("..v{}", self.version);
        self.version += 1;
        let new = format!("..v{}", self.version);
        fs::create_dir(at(&new)).unwrap();
        fs::write(at(&new).join("tls.crt"), certificate).unwrap();
        fs::write(at(&new).join("tls.key"), key).unwrap();
        symlink(&new, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        for name in ["tls.crt", "tls.key"] {
            if !at(name).is_symlink() {
                symlink(Path::new("..data").join(name), at(name)).unwrap();
            }
        }
        if at(&old).exists() {
            fs::remove_dir_all(at(&old)).unwrap();
        }
    }
}

async fn serve(mount: &Mount) -> Webhook {
    let settings = tls::Settings { every: Duration::from_millis(10), ..tls::Settings::new(mount.directory.path()) };
    Webhook::start_with(admission::Settings::default(), server::Settings::default(), settings).await
}

async fn ready(webhook: &Webhook) {
    until("readiness", || webhook.readiness.state() == State::Ready).await;
}

fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

async fn assert_answers(stream: &mut TlsStream<TcpStream>) {
    assert!(exchange(stream, &review(&pod())).await.unwrap().starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn two_swaps_are_seen_and_every_open_connection_survives_them() {
    let authority = Authority::new();
    let pairs = [authority.issue(), authority.issue(), authority.issue()];
    let mut mount = Mount::of(&pairs[0]);
    let webhook = serve(&mount).await;
    ready(&webhook).await;

    let mut open = Vec::new();
    for (nth, pair) in pairs.iter().enumerate() {
        if nth > 0 {
            mount.swap(&pair.certificate, &pair.key);
            until("the reload", || webhook.tls.reloads.get() == nth as u64 + 1).await;
        }
        let stream = connect(webhook.address, &authority.der(), &[]).await.unwrap();
        assert_eq!(shown(&stream), pair.der, "a new connection gets certificate {nth}");
        open.push(stream);
        for stream in &mut open {
            assert_answers(stream).await;
        }
    }
    assert_eq!(webhook.tls.reload_failures.get(), 0);
}

#[tokio::test]
async fn a_broken_file_keeps_the_last_good_one_and_is_told_of() {
    let (log, _guard) = Log::capture();
    let authority = Authority::new();
    let (good, other, better) = (authority.issue(), authority.issue(), authority.issue());
    let mut mount = Mount::of(&good);
    let webhook = serve(&mount).await;
    ready(&webhook).await;

    let half = &other.certificate[..other.certificate.len() / 2];
    for (certificate, key) in [(half, other.key.as_str()), (&other.certificate, &better.key), ("", "")] {
        let before = webhook.tls.reload_failures.get();
        mount.swap(certificate, key);
        until("the failure", || webhook.tls.reload_failures.get() > before + 1).await;
        let mut stream = connect(webhook.address, &authority.der(), &[]).await.unwrap();
        assert_eq!(shown(&stream), good.der);
        assert_answers(&mut stream).await;
    }
    assert_eq!(
        log.lines("still serving the last good one").len(),
        3,
        "one line for each, however often it was looked at"
    );

    mount.swap(&better.certificate, &better.key);
    until("the reload", || webhook.tls.reloads.get() == 2).await;
    assert_eq!(shown(&connect(webhook.address, &authority.der(), &[]).await.unwrap()), better.der);
}

#[tokio::test]
async fn files_that_vanish_keep_the_last_good_one() {
    let authority = Authority::new();
    let good = authority.issue();
    let mount = Mount::of(&good);
    let webhook = serve(&mount).await;
    ready(&webhook).await;
    fs::remove_file(mount.directory.path().join("..data")).unwrap();
    until("the failure", || webhook.tls.reload_failures.get() > 0).await;
    assert_eq!(shown(&connect(webhook.address, &authority.der(), &[]).await.unwrap()), good.der);
}

#[tokio::test]
async fn absent_files_are_waited_for() {
    let (log, _guard) = Log::capture();
    let authority = Authority::new();
    let mut mount = Mount::empty();
    let webhook = serve(&mount).await;
    until("some looks", || webhook.tls.reload_failures.get() > 3).await;
    assert_eq!(webhook.readiness.state(), State::Waiting(vec!["certificate"]));
    assert_eq!(log.lines("no usable certificate yet").len(), 1);
    closed(TcpStream::connect(webhook.address).await.unwrap()).await;
    assert_eq!(webhook.server.handshake_failures.of(HandshakeFailure::NoCertificate), 1);

    let pair = authority.issue();
    mount.swap(&pair.certificate, &pair.key);
    ready(&webhook).await;
    assert_answers(&mut connect(webhook.address, &authority.der(), &[]).await.unwrap()).await;
}

#[tokio::test]
async fn an_expired_certificate_is_served_and_told_of() {
    let (log, _guard) = Log::capture();
    let authority = Authority::new();
    let mount = Mount::of(&authority.issue_until(2024));
    let webhook = serve(&mount).await;
    ready(&webhook).await;
    let why = connect(webhook.address, &authority.der(), &[]).await.unwrap_err().to_string();
    assert!(why.contains("expired"), "the client sees for itself: {why}");
    until("the count", || webhook.server.handshake_failures.of(HandshakeFailure::Untrusted) == 1).await;
    assert_eq!(log.lines("the served certificate has expired").len(), 1);
    let not_after = webhook.tls.not_after.get();
    assert!((1..clock::now().as_second()).contains(&not_after), "{not_after}");
}
