//! What the tests with a real listener share: the webhook on a port of its own, clients, and the log.

#![allow(dead_code, unreachable_pub, reason = "each test binary takes what it needs")]

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kickstand::metrics::webhook::{AdmissionMetrics, ServerMetrics, TlsMetrics};
use kickstand::readiness::{Readiness, State};
use kickstand::shutdown::Shutdown;
use kickstand::tls::{self, Tls};
use kickstand::{admission, liveness, server};
use prometheus_client::registry::Registry;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// How long a test waits for what must happen before it calls it a hang. Nothing is measured by it.
pub const HANG: Duration = Duration::from_secs(30);

/// The development certificate.
pub const CERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/certs");

/// Waits for something that must happen.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANG, future).await.unwrap_or_else(|_| panic!("{what}: still waiting after {HANG:?}"))
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The pod of a TaskRun as Tekton ≥ 0.63 makes it, with one declared sidecar, and a field that no build knows.
pub fn pod() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "run-pod-",
            "labels": { "tekton.dev/taskRun": "run", "tekton.dev/taskRunUID": "u-1" },
            "ownerReferences": [
                { "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": "run", "uid": "u-1", "controller": true }
            ]
        },
        "spec": {
            "fieldOfTomorrow": { "kept": true },
            "restartPolicy": "Never",
            "containers": [
                { "name": "sidecar-web", "image": "web" },
                {
                    "name": "step-one",
                    "image": "busybox",
                    "command": ["/tekton/bin/entrypoint"],
                    "args": [
                        "-wait_file", "/tekton/downward/ready", "-wait_file_content",
                        "-post_file", "/tekton/run/0/out", "-entrypoint", "sh", "--", "-c", "true"
                    ]
                }
            ]
        }
    })
}

/// The review that an API server sends when that pod is created.
pub fn review(object: &Value) -> Value {
    json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "requestKind": { "group": "", "version": "v1", "kind": "Pod" },
            "requestResource": { "group": "", "version": "v1", "resource": "pods" },
            "namespace": "ci",
            "operation": "CREATE",
            "userInfo": { "username": "system:serviceaccount:tekton-pipelines:tekton-pipelines-controller" },
            "object": object,
            "oldObject": null,
            "dryRun": false,
            "options": { "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1" }
        }
    })
}

/// What the webhook knows of a controller: one that was seen to renew its Lease, and can open no gate in `locked`; or none.
pub fn controller(alive: bool) -> liveness::Liveness {
    let (liveness, mut watcher) = liveness::watcher();
    if alive {
        for second in [1, 2] {
            let renewed = jiff::Timestamp::from_second(second).ok();
            let sight = liveness::Sight { holder: "controller-0".to_owned(), renewed };
            let mut facts = kickstand::pod::facts::Facts::default();
            facts.gate_was_refused("locked", jiff::Timestamp::UNIX_EPOCH);
            facts.native = Some(kickstand::pod::facts::Native::Possible);
            watcher.saw(liveness::Seen { sight, facts });
        }
    }
    assert_eq!(liveness.alive(), alive);
    liveness
}

/// The webhook on a port of its own.
pub struct Webhook {
    pub address: SocketAddr,
    pub shutdown: Shutdown,
    pub readiness: Readiness,
    pub admission: AdmissionMetrics,
    pub server: ServerMetrics,
    pub tls: TlsMetrics,
    pub certificate: Tls,
    pub task: JoinHandle<()>,
}

impl Webhook {
    /// Serves the development certificate.
    pub async fn start(admission: admission::Settings, server: server::Settings) -> Self {
        let webhook = Self::start_with(admission, server, tls::Settings::new(CERTS)).await;
        until("the certificate", || webhook.readiness.state() == State::Ready).await;
        webhook
    }

    /// Serves what is in another directory, once something is.
    pub async fn start_with(admission: admission::Settings, server: server::Settings, tls: tls::Settings) -> Self {
        let mut registry = Registry::default();
        let (admission_metrics, server_metrics, tls_metrics) = (
            AdmissionMetrics::register(&mut registry),
            ServerMetrics::register(&mut registry),
            TlsMetrics::register(&mut registry),
        );
        let (readiness, shutdown) = (Readiness::default(), Shutdown::default());
        let (certificate, keeper) = tls::from_directory(tls, tls_metrics.clone());
        tokio::spawn(keeper.run(readiness.token("certificate"), CancellationToken::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = admission::router(admission, admission_metrics.clone(), controller(true));
        let task = tokio::spawn(server::serve(
            listener,
            router,
            Some(certificate.clone()),
            server,
            server_metrics.clone(),
            shutdown.clone(),
        ));
        Self {
            address,
            shutdown,
            readiness,
            admission: admission_metrics,
            server: server_metrics,
            tls: tls_metrics,
            certificate,
            task,
        }
    }

    /// Connects with TLS, trusting the development CA.
    pub async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        connect(self.address, &development_ca(), &[]).await
    }

    /// One review on a connection of its own.
    pub async fn review_once(&self) -> String {
        let mut stream = self.connect().await.unwrap();
        exchange(&mut stream, &review(&pod())).await.unwrap()
    }
}

pub fn development_ca() -> CertificateDer<'static> {
    CertificateDer::from_pem_file(Path::new(CERTS).join("ca.crt")).unwrap()
}

/// Connects with TLS, trusting `ca` and nobody else.
pub async fn connect(
    address: SocketAddr,
    ca: &CertificateDer<'static>,
    alpn: &[&str],
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// The head of a request that has a body of `length` bytes.
pub fn head(length: usize) -> String {
    format!(
        "POST /mutate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// One request and its answer (HTTP/1.1): head and body.
pub async fn exchange(stream: &mut TlsStream<TcpStream>, body: &Value) -> io::Result<String> {
    let body = body.to_string();
    stream.write_all(head(body.len()).as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    // A hundred clients in one task share its budget: what was taken may not have been sent.
    stream.flush().await?;
    answer(stream).await
}

/// Reads one answer (HTTP/1.1): head and body.
pub async fn answer(stream: &mut TlsStream<TcpStream>) -> io::Result<String> {
    let mut bytes = Vec::new();
    soon("an answer", async {
        loop {
            let text = String::from_utf8_lossy(&bytes);
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "))
                    .map_or(0, |length| length.parse().unwrap());
                if body.len() >= length {
                    return Ok(text.into_owned());
                }
            }
            let mut buffer = [0; 4096];
            match stream.read(&mut buffer).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => bytes.extend_from_slice(&buffer[..read]),
            }
        }
    })
    .await
}

/// Waits until the other side has closed the connection, in whatever way.
pub async fn closed(mut stream: impl tokio::io::AsyncRead + Unpin) {
    soon("the connection's end", async {
        let mut buffer = [0; 4096];
        while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    })
    .await;
}

/// What is logged on this thread, while the guard lives.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn capture() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    /// The lines that have `words` in them.
    pub fn lines(&self, words: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
