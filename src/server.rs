//! Connections: accepted, put through TLS, bounded in number and in patience, and brought to an end.
//!
//! A loop of its own over tokio-rustls and hyper, for what a ready-made server leaves open: how many connections there may
//! be (of one address, too), how long one may be silent, and who is to be told why a handshake failed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rustls::{AlertDescription, InvalidMessage};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::metrics::Raised;
use crate::metrics::webhook::{HandshakeFailure, ServerMetrics};
use crate::shutdown::Shutdown;
use crate::telemetry::Throttle;
use crate::tls::Tls;

/// After a failed accept (out of file descriptors, most likely), before the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// An HTTP/2 client that does not answer a ping is gone.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Far beyond the headers of any request that we answer.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Log lines a second about connections.
const LINES_A_SECOND: u32 = 1;

/// How much patience there is with connections.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Connections at a time; one more is closed at once, so that its caller need not wait to learn it.
    pub max_connections: usize,
    /// Of those, from one address: nobody is to take every place. The API server comes from few addresses, often from one,
    /// so this must be enough for all it asks.
    pub max_connections_of_one: usize,
    /// From the connection to the end of its TLS handshake.
    pub handshake_timeout: Duration,
    /// From there to the end of the first request's headers.
    pub header_timeout: Duration,
    /// Without any request, and from one request's end to the end of the next one's headers. Longer than Go's clients
    /// keep an idle connection (90 s): the side that sends requests should be the one that closes.
    pub idle_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_connections_of_one: 512,
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(120),
        }
    }
}

/// What every connection needs.
struct Server {
    router: Router,
    tls: Option<Tls>,
    settings: Settings,
    metrics: ServerMetrics,
    shutdown: Shutdown,
    http: Builder<TokioExecutor>,
    throttle: Throttle,
}

/// Serves `router` to whoever connects to `listener`; with `tls` over TLS, else in the clear. Ends after
/// [`Shutdown::draining`], once every connection has finished what it had begun, or at [`Shutdown::now`].
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Option<Tls>,
    settings: Settings,
    metrics: ServerMetrics,
    shutdown: Shutdown,
) {
    let mut http = Builder::new(TokioExecutor::new());
    // hyper's own limit starts with the wait for a next request; the first one's is ours (see `converse`).
    http.http1().timer(TokioTimer::new()).header_read_timeout(settings.idle_timeout).max_buf_size(MAX_HEADER_BYTES);
    http.http2().timer(TokioTimer::new()).keep_alive_interval(PING_EVERY).keep_alive_timeout(PING_TIMEOUT);

    let throttle = Throttle::new(LINES_A_SECOND);
    let server = Arc::new(Server { router, tls, settings, metrics, shutdown, http, throttle });
    let slots = Arc::new(Semaphore::new(settings.max_connections));
    let peers = Arc::new(Peers::default());
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = server.shutdown.draining.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                server.speak(|left_out| warn!(%error, left_out, "cannot accept a connection"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
            let max = settings.max_connections;
            server.metrics.connections_refused.inc();
            server.speak(|left_out| warn!(%peer, max, left_out, "too many connections: closed one at once"));
            continue;
        };
        let Some(seat) = peers.admit(peer.ip(), settings.max_connections_of_one) else {
            let max = settings.max_connections_of_one;
            server.metrics.connections_refused.inc();
            server.speak(
                |left_out| warn!(%peer, max, left_out, "too many connections from one address: closed one at once"),
            );
            continue;
        };
        let server = Arc::clone(&server);
        connections.spawn(async move {
            let _places = (slot, seat);
            let now = server.shutdown.now.clone();
            now.run_until_cancelled(server.connection(stream, peer)).await;
        });
    }
    // Refused from here on, rather than left hanging in the kernel's queue.
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// How many connections there are from each address.
#[derive(Debug, Default)]
struct Peers(Mutex<HashMap<IpAddr, usize>>);

impl Peers {
    /// One more, unless there are that many.
    fn admit(self: &Arc<Self>, address: IpAddr, max: usize) -> Option<Seat> {
        let address = address.to_canonical();
        let mut peers = self.inner();
        let count = peers.entry(address).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Seat { peers: Arc::clone(self), address })
    }

    /// Numbers are whole whatever panicked beside them.
    fn inner(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection among those of its address, until this is dropped.
#[derive(Debug)]
struct Seat {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut peers = self.peers.inner();
        if let Entry::Occupied(mut count) = peers.entry(self.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl Server {
    async fn connection(&self, stream: TcpStream, peer: SocketAddr) {
        let _open = Raised::new(&self.metrics.connections);
        // An answer is one small write: nothing to wait for.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%peer, %error, "cannot set TCP_NODELAY");
        }
        match &self.tls {
            None => self.converse(stream).await,
            Some(tls) => match self.handshake(tls, stream).await {
                Ok(stream) => self.converse(stream).await,
                Err((failure, error)) => self.tell(peer, failure, &error),
            },
        }
    }

    async fn handshake(
        &self,
        tls: &Tls,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, (HandshakeFailure, io::Error)> {
        let Some(config) = tls.config() else {
            return Err((HandshakeFailure::NoCertificate, io::Error::other("there is no certificate yet")));
        };
        match timeout(self.settings.handshake_timeout, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err((cause(&error), error)),
            Err(elapsed) => Err((HandshakeFailure::Timeout, elapsed.into())),
        }
    }

    fn tell(&self, peer: SocketAddr, failure: HandshakeFailure, error: &io::Error) {
        self.metrics.handshake_failures.count(failure);
        let likely = match failure {
            // Load balancers and probes look whether the port is open, and leave: nothing to tell.
            HandshakeFailure::Closed => return debug!(%peer, %error, "a client left during the TLS handshake"),
            HandshakeFailure::NotTls => {
                "the client does not speak TLS: a plain-HTTP client, or a probe or Service that says http where it must say https"
            }
            HandshakeFailure::Untrusted => {
                "the client does not take our certificate: is the caBundle of the webhook configuration the one that signed it, and does it name the Service?"
            }
            HandshakeFailure::Incompatible => "the client has no TLS version or cipher in common with us (1.2 and up)",
            HandshakeFailure::Timeout => "the client took too long",
            HandshakeFailure::NoCertificate => "not ready: there is no certificate yet",
            HandshakeFailure::Other => "unknown",
        };
        self.speak(|left_out| warn!(%peer, %error, likely, left_out, "a TLS handshake failed"));
    }

    /// Serves one connection until it ends, has been silent for too long, or is to be drained.
    async fn converse<I>(&self, stream: I)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (in_flight, requests) = watch::channel(0_usize);
        let in_flight = Arc::new(in_flight);
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = Busy::new(&in_flight);
            let answer = router.call(request);
            async move {
                let answer = answer.await;
                drop(busy);
                answer
            }
        });
        let mut connection = pin!(self.http.serve_connection(TokioIo::new(stream), service));
        let mut first = pin!(first_request(requests.clone()));
        tokio::select! {
            // What goes wrong in HTTP is the client's, and says nothing that a count would not.
            _ = connection.as_mut() => return,
            in_time = timeout(self.settings.header_timeout, first.as_mut()) => if in_time.is_err() { return },
            () = self.shutdown.draining.cancelled() => {}
        }
        tokio::select! {
            _ = connection.as_mut() => return,
            () = silence(requests, self.settings.idle_timeout) => {
                // Should it send a request just now, it gets an answer.
                connection.as_mut().graceful_shutdown();
                let _ = timeout(self.settings.header_timeout, connection).await;
                return;
            }
            () = self.shutdown.draining.cancelled() => {}
        }
        // `Connection: close` with the next answer in HTTP/1, GOAWAY in HTTP/2.
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }

    /// Says something, if not too much has been said already; hands on how many times nothing was said.
    fn speak(&self, say: impl FnOnce(u64)) {
        if let Some(left_out) = self.throttle.pass() {
            say(left_out);
        }
    }
}

/// Ends when the first request's headers are there.
async fn first_request(mut requests: watch::Receiver<usize>) {
    if requests.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Ends when no request has been in work, and none has come, for `limit`.
async fn silence(mut requests: watch::Receiver<usize>, limit: Duration) {
    while requests.wait_for(|in_flight| *in_flight == 0).await.is_ok() {
        if timeout(limit, requests.changed()).await.is_err() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// What a handshake most likely failed for.
fn cause(error: &io::Error) -> HandshakeFailure {
    use AlertDescription as Alert;
    let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                HandshakeFailure::Closed
            }
            _ => HandshakeFailure::Other,
        };
    };
    match tls {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => HandshakeFailure::NotTls,
        rustls::Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::UnsupportedCertificate
            | Alert::AccessDenied,
        ) => HandshakeFailure::Untrusted,
        rustls::Error::PeerIncompatible(_)
        | rustls::Error::AlertReceived(
            Alert::ProtocolVersion | Alert::HandshakeFailure | Alert::InsufficientSecurity,
        ) => HandshakeFailure::Incompatible,
        _ => HandshakeFailure::Other,
    }
}

/// A request in work, until this is dropped.
struct Busy(Arc<watch::Sender<usize>>);

impl Busy {
    fn new(in_flight: &Arc<watch::Sender<usize>>) -> Self {
        in_flight.send_modify(|requests| *requests += 1);
        Self(Arc::clone(in_flight))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|requests| *requests -= 1);
    }
}
