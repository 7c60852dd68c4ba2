//! Puts a process together from its parts, and ends it in order. A part that ends before it was asked to is an error:
//! half a webhook, or a controller that watches nothing, must be restarted rather than look alive.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::config::{ControllerArgs, DoctorArgs, Native, ReleaseArgs, WebhookArgs};
use crate::metrics::certificates::CertificateMetrics;
use crate::metrics::webhook::{AdmissionMetrics, LivenessMetrics, ServerMetrics, TlsMetrics};
use crate::pod::facts::Facts;
use crate::pod::known::Known;
use crate::readiness::Readiness;
use crate::shutdown::{self, Shutdown, Signal};
use crate::{
    admin, admission, certificates, clock, cluster, controller, doctor, effects, leader, liveness, metrics, release,
    server, tls, watch,
};

/// Pods looked at side by side: each look is at most a read and two writes.
const CONCURRENCY: usize = 32;

/// Runs the webhook until a signal.
///
/// # Errors
/// If a port is taken, the cluster's configuration is not there, or a part ends by itself.
pub async fn webhook(args: WebhookArgs) -> anyhow::Result<()> {
    let mut process = Process::start(args.admin_address).await?;
    let client = client().await?;
    let listener = bind(args.listen_address).await?;
    let registry = &mut process.registry;
    let (admission_metrics, tls_metrics) = (AdmissionMetrics::register(registry), TlsMetrics::register(registry));
    let (server_metrics, liveness_metrics) = (ServerMetrics::register(registry), LivenessMetrics::register(registry));

    let (alive, watcher) = liveness::watcher();
    let waiting = process.readiness.token("the controller's Lease");
    let draining = process.shutdown.draining.clone();
    process.part(
        "the look at the controller's Lease",
        watcher.run(
            client,
            liveness::Settings::new(args.namespace, args.lease_name),
            liveness_metrics,
            waiting,
            draining,
        ),
    );

    let (certificate, keeper) = tls::from_directory(tls::Settings::new(args.tls_dir), tls_metrics);
    let waiting = process.readiness.token("a certificate");
    process.part("the look at the certificate", keeper.run(waiting, process.shutdown.draining.clone()));

    let settings = admission::Settings {
        max_body_bytes: args.max_body_bytes,
        max_concurrent: args.max_concurrent_reviews,
        deadline: args.review_deadline,
        native: args.native == Native::Auto,
        skip_tekton_wait: args.skip_tekton_wait,
        known: args.known_sidecars.unwrap_or_else(|| Known::builtin().clone()),
        ..admission::Settings::default()
    };
    let router = admission::router(settings, admission_metrics, alive);
    let shutdown = process.shutdown.clone();
    let serve =
        server::serve(listener, router, Some(certificate), server::Settings::default(), server_metrics, shutdown);
    process.part("the webhook's server", serve);
    info!(address = %args.listen_address, "serving the webhook");

    let settings = shutdown::Settings { grace: args.drain_grace, deadline: args.drain_deadline };
    process.run(settings).await
}

/// Runs the controller until a signal.
///
/// # Errors
/// If the admin port is taken, the cluster's configuration is not there, or a part ends by itself.
pub async fn controller(args: ControllerArgs) -> anyhow::Result<()> {
    let mut process = Process::start(args.admin_address).await?;
    let client = client().await?;
    let metrics = metrics::controller::Metrics::register(&mut process.registry);
    let certificate_metrics = CertificateMetrics::register(&mut process.registry);

    let settings = leader::Settings {
        namespace: args.namespace.clone(),
        name: args.lease_name,
        identity: args.identity.clone(),
        now: clock::now,
    };
    // Whoever sees nothing must not lead: the webhook takes the Lease for a promise that gates are opened.
    let (sees, seeing) = channel::channel(false);
    let (facts, _) = channel::channel(Facts::default());
    let (candidate, leads) = leader::Candidate::new(client.clone(), settings, seeing, facts.clone());
    // Given up last: until then nobody else acts.
    let over = CancellationToken::new();
    process.last("the leader election", candidate.run(over.clone()), over);

    if args.manage_certificates {
        let settings = certificates::Settings {
            namespace: args.namespace,
            service: args.webhook_service,
            webhook_configurations: args.webhook_configuration,
            ca_secret: args.ca_secret,
            tls_secret: args.tls_secret,
        };
        let draining = process.shutdown.draining.clone();
        let keep = certificates::run(client.clone(), settings, certificate_metrics, leads.clone(), draining);
        process.part("the look after certificates", keep);
    }

    let settings = controller::Settings {
        watch: watch::Settings { namespaces: args.watch_namespaces, native_minimum: args.native_minimum },
        effects: effects::Settings { nop_image: args.nop_image, instance: args.identity },
        tekton_nop_images: args.tekton_nop_images,
        known: args.known_sidecars.unwrap_or_else(|| Known::builtin().clone()),
        concurrency: CONCURRENCY,
        facts,
        now: clock::now,
    };
    let synced = process.readiness.token("a first look at pods, TaskRuns and namespaces");
    let draining = process.shutdown.draining.clone();
    process.fallible(
        "the controller",
        controller::run(client, settings, metrics, leads, sees, move || drop(synced), draining),
    );
    // Nobody calls the controller: it leaves as soon as what it had begun is done.
    let settings = shutdown::Settings { grace: Duration::ZERO, ..shutdown::Settings::default() };
    process.run(settings).await
}

/// Opens every gate that is still shut.
///
/// # Errors
/// If the API server does not do as asked, or gates are still shut at the deadline.
pub async fn release(args: ReleaseArgs) -> anyhow::Result<()> {
    let settings = release::Settings {
        webhook_configurations: if args.delete_webhook { args.webhook_configuration } else { Vec::new() },
        namespaces: args.watch_namespaces,
        deadline: args.deadline,
        now: clock::now,
    };
    Ok(release::run(client().await?, settings).await?)
}

/// Tries pods of a namespace by dry runs. Is all well?
///
/// # Errors
/// If there is no cluster or no such namespace, or the output cannot be written.
pub async fn doctor(args: DoctorArgs) -> anyhow::Result<bool> {
    let settings = doctor::Settings {
        namespace: args.namespace,
        annotations: args.annotate.into_iter().collect(),
        image: args.image,
        times: args.times.into(),
        wait: args.wait,
        home: args.kickstand_namespace,
        lease: args.lease_name,
        output: args.output,
    };
    Ok(doctor::run(&client().await?, &settings, io::stdout(), io::stderr()).await?)
}

async fn client() -> anyhow::Result<Client> {
    let config = kube::Config::infer().await.context("no cluster to talk to: neither a kubeconfig nor a pod's own")?;
    cluster::client(config).context("cannot make a client for the cluster")
}

async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))
}

type Part = (&'static str, anyhow::Result<()>);

/// The parts of a process, what it is measured by, and how it is asked to stop.
struct Process {
    registry: Registry,
    readiness: Readiness,
    shutdown: Shutdown,
    admin: TcpListener,
    parts: JoinSet<Part>,
    last: JoinSet<Part>,
    over: CancellationToken,
    signals: BoxStream<'static, Signal>,
}

impl Process {
    async fn start(admin: SocketAddr) -> anyhow::Result<Self> {
        Ok(Self {
            // First: the kernel drops a signal to a container's first process that nobody listens to.
            signals: shutdown::signals().context("cannot listen to signals")?.boxed(),
            registry: metrics::registry(),
            readiness: Readiness::default(),
            shutdown: Shutdown::default(),
            admin: bind(admin).await?,
            parts: JoinSet::new(),
            last: JoinSet::new(),
            over: CancellationToken::new(),
        })
    }

    /// Ends by itself once the process is draining, and not before.
    fn part(&mut self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        self.parts.spawn(async move {
            part.await;
            (name, Ok(()))
        });
    }

    fn fallible<E>(&mut self, name: &'static str, part: impl Future<Output = Result<(), E>> + Send + 'static)
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        self.parts.spawn(async move { (name, part.await.map_err(anyhow::Error::from)) });
    }

    /// Ends when `over` is cancelled, which happens once every other part has ended.
    fn last(&mut self, name: &'static str, part: impl Future<Output = ()> + Send + 'static, over: CancellationToken) {
        self.over = over;
        self.last.spawn(async move {
            part.await;
            (name, Ok(()))
        });
    }

    async fn run(mut self, settings: shutdown::Settings) -> anyhow::Result<()> {
        // Answers to the very end, so that nobody takes a process that leaves in order for one that hangs.
        let until_the_end = Shutdown::default();
        let mut admin_registry = Registry::default();
        let admin_metrics = ServerMetrics::register(&mut admin_registry);
        let router = admin::router(self.readiness.clone(), std::mem::take(&mut self.registry));
        // Short: whoever idles on it must not keep the kubelet's probes out.
        let patience = server::Settings { idle_timeout: Duration::from_secs(5), ..server::Settings::default() };
        let admin = server::serve(self.admin, router, None, patience, admin_metrics, until_the_end.clone());
        let admin = tokio::spawn(admin);

        let (shutdown, readiness, signals) = (self.shutdown.clone(), self.readiness.clone(), self.signals);
        let conductor = tokio::spawn(async move { shutdown.conduct(&readiness, settings, signals).await });

        let outcome = tokio::select! {
            () = self.shutdown.draining.cancelled() => Ok(()),
            Some(ended) = self.parts.join_next() => early(ended, &self.shutdown),
            Some(ended) = self.last.join_next() => early(ended, &self.shutdown),
        };
        self.shutdown.draining.cancel();
        let now = self.shutdown.now.clone();
        let rest = async {
            while self.parts.join_next().await.is_some() {}
            self.over.cancel();
            while self.last.join_next().await.is_some() {}
        };
        // Without a signal, after an early end, nobody else sets a limit.
        let limit = settings.deadline.saturating_add(settings.grace);
        tokio::select! {
            _ = tokio::time::timeout(limit, rest) => {}
            () = now.cancelled() => {}
        }
        until_the_end.draining.cancel();
        until_the_end.now.cancel();
        let _ = admin.await;
        conductor.abort();
        outcome
    }
}

fn early(ended: Result<Part, tokio::task::JoinError>, shutdown: &Shutdown) -> anyhow::Result<()> {
    if shutdown.draining.is_cancelled() {
        return Ok(());
    }
    let (name, result) = ended.context("a part of the process panicked")?;
    result.with_context(|| format!("{name} failed"))?;
    bail!("{name} ended, which it never should")
}
