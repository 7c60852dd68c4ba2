//! What the webhook knows of a live controller: somebody who will open the gates that it shuts.
//!
//! It reads one Lease, and believes only what it saw happen, by its own clock: a Lease that says "renewed just now" may be
//! a dead controller's on a node whose clock is wrong. Alive = its holder was seen to renew it in the last 20 seconds, and
//! has not given it up since. What the holder has noted on it ([`Facts`]) is read along.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::metrics::Closed;
use crate::metrics::webhook::{LeaseFailure, LivenessMetrics};
use crate::pod::contract::FACTS;
use crate::pod::facts::Facts;
use crate::pod::native::Off;
use crate::readiness::Token;

/// A controller renews every 5 seconds, and another takes over after 15: silent for longer than that, there is none.
pub const DEAD_AFTER: Duration = Duration::from_secs(20);

/// Which Lease, and how often it is read.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace that it is in.
    pub namespace: String,
    /// Its name.
    pub lease: String,
    /// From one read to the next, give or take a tenth.
    pub every: Duration,
    /// For one read.
    pub timeout: Duration,
    /// How long a start waits for a sign of life before it goes on without a controller.
    pub patience: Duration,
}

impl Settings {
    /// Reads that Lease every 3 seconds.
    #[must_use]
    pub fn new(namespace: impl Into<String>, lease: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            lease: lease.into(),
            every: Duration::from_secs(3),
            timeout: Duration::from_secs(2),
            patience: Duration::from_secs(10),
        }
    }
}

/// What of a Lease only a live holder changes. Not its `resourceVersion`: anybody's label would be a sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// Who holds it; empty = nobody.
    pub holder: String,
    /// When the holder says that it renewed it.
    pub renewed: Option<Timestamp>,
}

/// A Lease, as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// A sign of life, perhaps.
    pub sight: Sight,
    /// What its holder tells us.
    pub facts: Facts,
}

impl From<Lease> for Seen {
    fn from(lease: Lease) -> Self {
        let spec = lease.spec.unwrap_or_default();
        let sight =
            Sight { holder: spec.holder_identity.unwrap_or_default(), renewed: spec.renew_time.map(|time| time.0) };
        let annotations = lease.metadata.annotations.unwrap_or_default();
        Self { sight, facts: Facts::read(annotations.get(FACTS).map(String::as_str)) }
    }
}

/// The rule: a holder that was seen to change the Lease is alive for [`DEAD_AFTER`], or until it gives it up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    last: Option<Sight>,
    changed: Option<Instant>,
}

impl Rule {
    /// The Lease was read. The first sight proves nothing. Whoever gives the Lease up opens no gate any more.
    pub fn saw(&mut self, sight: Sight, now: Instant) {
        if sight.holder.is_empty() {
            self.changed = None;
        } else if self.last.as_ref().is_some_and(|last| *last != sight) {
            self.changed = Some(now);
        }
        self.last = Some(sight);
    }

    /// A controller is known to be alive.
    #[must_use]
    pub fn alive(&self, now: Instant) -> bool {
        is_recent(self.changed, now)
    }
}

fn is_recent(change: Option<Instant>, now: Instant) -> bool {
    change.is_some_and(|change| now.duration_since(change) < DEAD_AFTER)
}

/// Whether a controller is known to be alive, at any moment, and what it tells; clones share it. Says no by itself once the
/// signs stay away, whatever became of [`Watcher::run`].
#[derive(Clone, Debug)]
pub struct Liveness(watch::Receiver<Known>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    changed: Option<Instant>,
    facts: Facts,
}

impl Liveness {
    /// A controller is known to be alive now.
    #[must_use]
    pub fn alive(&self) -> bool {
        is_recent(self.0.borrow().changed, Instant::now())
    }

    /// The controller could not open gates in this namespace lately.
    #[must_use]
    pub fn refuses_gates(&self, namespace: &str) -> bool {
        self.0.borrow().facts.refuses_gates(namespace)
    }

    /// Can a pod of this TaskRun (its UID) in this namespace have native sidecars?
    ///
    /// # Errors
    /// Why not.
    pub fn native(&self, namespace: &str, run: Option<&str>) -> Result<(), Off> {
        self.0.borrow().facts.native(namespace, run)
    }
}

/// Feeds a [`Liveness`].
#[derive(Debug)]
pub struct Watcher {
    rule: Rule,
    known: watch::Sender<Known>,
}

/// Nobody is known to be alive until the watcher has seen it.
#[must_use]
pub fn watcher() -> (Liveness, Watcher) {
    let (known, follow) = watch::channel(Known::default());
    (Liveness(follow), Watcher { rule: Rule::default(), known })
}

impl Watcher {
    /// The Lease was read just now.
    pub fn saw(&mut self, seen: Seen) {
        self.rule.saw(seen.sight, Instant::now());
        self.known.send_replace(Known { changed: self.rule.changed, facts: seen.facts });
    }

    /// Reads the Lease until `stop`. `waiting` is dropped at the first sign of life, or when patience is over: then the
    /// webhook serves, and gates nothing.
    pub async fn run(
        self,
        client: Client,
        settings: Settings,
        metrics: LivenessMetrics,
        waiting: Token,
        stop: CancellationToken,
    ) {
        let leases: Api<Lease> = Api::namespaced(client, &settings.namespace);
        let (name, limit) = (settings.lease.clone(), settings.timeout);
        let read = move || {
            let (leases, name) = (leases.clone(), name.clone());
            async move {
                match timeout(limit, leases.get(&name)).await {
                    Ok(Ok(lease)) => Ok(lease.into()),
                    Ok(Err(error)) => Err((failure(&error), error.to_string())),
                    Err(_) => Err((LeaseFailure::Timeout, format!("no answer in {limit:?}"))),
                }
            }
        };
        stop.run_until_cancelled(self.poll(read, settings, metrics, waiting)).await;
    }

    async fn poll<R, F>(mut self, read: R, settings: Settings, metrics: LivenessMetrics, waiting: Token)
    where
        R: Fn() -> F,
        F: Future<Output = Result<Seen, (LeaseFailure, String)>>,
    {
        let mut waiting = Some(waiting);
        let until = Instant::now() + settings.patience;
        let lease = format!("{}/{}", settings.namespace, settings.lease);
        let (mut was_alive, mut failed) = (false, None);
        loop {
            match read().await {
                Ok(seen) => {
                    if failed.take().is_some() {
                        info!(lease, "the controller's Lease can be read again");
                    }
                    self.saw(seen);
                }
                Err((failure, why)) => {
                    metrics.failures.count(failure);
                    if failed.replace(failure) != Some(failure) {
                        let reason = failure.as_label();
                        warn!(lease, reason, why, "cannot read the controller's Lease: soon no pod is gated");
                    }
                }
            }
            let now = Instant::now();
            let alive = self.rule.alive(now);
            metrics.alive.set(i64::from(alive));
            match (was_alive, alive) {
                (false, true) => info!(lease, holder = self.holder(), "a controller is alive: pods are gated"),
                (true, false) => warn!(lease, holder = self.holder(), "no controller is alive: no pod is gated"),
                _ => {}
            }
            was_alive = alive;
            if waiting.is_some() && (alive || now >= until) {
                if !alive {
                    warn!(lease, waited = ?settings.patience, "no sign of a live controller: serving, but no pod is gated");
                }
                drop(waiting.take());
            }
            let pause = jittered(settings.every);
            sleep(if waiting.is_some() { pause.min(until - now) } else { pause }).await;
        }
    }

    fn holder(&self) -> &str {
        self.rule.last.as_ref().map_or("", |sight| &sight.holder)
    }
}

fn failure(error: &kube::Error) -> LeaseFailure {
    match error {
        kube::Error::Api(status) if status.code == 404 => LeaseFailure::NotFound,
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => LeaseFailure::Forbidden,
        _ => LeaseFailure::Other,
    }
}

/// Nine to eleven tenths of `time`, so that replicas that started together do not ask together.
fn jittered(time: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 201;
    time.mul_f64(0.9 + f64::from(u8::try_from(random).unwrap_or_default()) / 1000.0)
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicI64, Ordering};

    use axum::http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::readiness::{Readiness, State};

    fn sight(holder: &str, second: i64) -> Sight {
        Sight { holder: holder.to_owned(), renewed: Some(Timestamp::from_second(second).unwrap()) }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_sight_proves_nothing() {
        let (mut rule, start) = (Rule::default(), Instant::now());
        rule.saw(sight("one", 1), start);
        assert!(!rule.alive(start));
        rule.saw(sight("one", 1), after(start, 3));
        assert!(!rule.alive(after(start, 3)), "an unchanged Lease is no sign either");
    }

    #[test]
    fn a_renewal_is_a_sign_for_twenty_seconds() {
        let (mut rule, start) = (Rule::default(), Instant::now());
        rule.saw(sight("one", 1), start);
        rule.saw(sight("one", 6), after(start, 6));
        assert!(rule.alive(after(start, 6)));
        rule.saw(sight("one", 6), after(start, 20));
        assert!(rule.alive(after(start, 25)));
        assert!(!rule.alive(after(start, 26)));
    }

    #[test]
    fn a_renewal_is_a_sign_whatever_the_other_clock_says() {
        let (mut rule, start) = (Rule::default(), Instant::now());
        rule.saw(sight("one", 1_000), start);
        rule.saw(sight("one", 5), after(start, 5));
        assert!(rule.alive(after(start, 5)));
    }

    #[test]
    fn another_holder_is_a_sign_and_none_is_not() {
        let (mut rule, start) = (Rule::default(), Instant::now());
        rule.saw(sight("one", 1), start);
        rule.saw(sight("", 2), after(start, 2));
        assert!(!rule.alive(after(start, 2)), "given up");
        rule.saw(sight("two", 2), after(start, 4));
        assert!(rule.alive(after(start, 4)), "taken over");
        rule.saw(sight("", 9), after(start, 9));
        assert!(!rule.alive(after(start, 9)), "given up again: dead at once");
        rule.saw(sight("two", 10), after(start, 10));
        assert!(rule.alive(after(start, 10)), "and taken again");
    }

    fn settings() -> Settings {
        Settings::new("kickstand", "kickstand-controller")
    }

    /// Runs the poll on what `read` answers for the n-th read, and looks on after each of `looks`, in seconds.
    async fn watch_on(
        read: impl Fn(i64) -> Result<Sight, (LeaseFailure, String)> + Send + Sync + 'static,
        looks: &[u64],
    ) -> (Vec<(bool, bool)>, LivenessMetrics) {
        let (readiness, metrics, (liveness, watcher)) = (Readiness::default(), LivenessMetrics::default(), watcher());
        let token = readiness.token("controller");
        let count = AtomicI64::new(1);
        let read = move || {
            let sight = read(count.fetch_add(1, Ordering::Relaxed));
            ready(sight.map(|sight| Seen { sight, facts: Facts::default() }))
        };
        let task = tokio::spawn(watcher.poll(read, settings(), metrics.clone(), token));
        let start = Instant::now();
        let mut seen = Vec::new();
        for seconds in looks {
            tokio::time::sleep_until(after(start, *seconds)).await;
            seen.push((readiness.state() == State::Ready, liveness.alive()));
        }
        task.abort();
        (seen, metrics)
    }

    #[tokio::test(start_paused = true)]
    async fn ready_as_soon_as_a_renewal_was_seen() {
        let (seen, metrics) = watch_on(|read| Ok(sight("one", read)), &[1, 5, 60]).await;
        assert_eq!(seen, [(false, false), (true, true), (true, true)]);
        assert_eq!(metrics.alive.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_renewal_ready_all_the_same_in_the_end() {
        let (seen, metrics) = watch_on(|_| Ok(sight("one", 1)), &[9, 11, 60]).await;
        assert_eq!(seen, [(false, false), (true, false), (true, false)]);
        assert_eq!(metrics.alive.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_lease_extends_no_life() {
        let forbidden = || Err((LeaseFailure::Forbidden, "no".to_owned()));
        let read = move |read| if read <= 2 { Ok(sight("one", read)) } else { forbidden() };
        let (seen, metrics) = watch_on(read, &[5, 20, 30]).await;
        assert_eq!(seen, [(true, true), (true, true), (true, false)]);
        assert!(metrics.failures.of(LeaseFailure::Forbidden) > 5);
        assert_eq!(metrics.alive.get(), 0);
    }

    #[tokio::test]
    async fn that_one_lease_is_read_and_a_refusal_is_told_apart() {
        let (service, mut api) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let (metrics, stop) = (LivenessMetrics::default(), CancellationToken::new());
        let settings = Settings { every: Duration::from_millis(1), ..settings() };
        let (liveness, watcher) = watcher();
        let token = Readiness::default().token("controller");
        let task =
            tokio::spawn(watcher.run(Client::new(service, "other"), settings, metrics.clone(), token, stop.clone()));
        let lease = |second| {
            let time = format!("2026-01-01T00:00:0{second}.000000Z");
            let facts = r#"{"gatesRefused":{"locked":"2026-01-01T01:00:00Z"}}"#;
            let metadata = json!({ "annotations": { "kickstand.dev/facts": facts } });
            (200, json!({ "metadata": metadata, "spec": { "holderIdentity": "one", "renewTime": time } }))
        };
        let refusal = |code| (code, json!({ "status": "Failure", "message": "no", "reason": "No", "code": code }));
        for (code, body) in [refusal(403), refusal(404), refusal(500), lease(1), lease(2)] {
            let (request, send) = api.next_request().await.unwrap();
            assert_eq!(request.method(), "GET");
            assert_eq!(
                request.uri().path(),
                "/apis/coordination.k8s.io/v1/namespaces/kickstand/leases/kickstand-controller"
            );
            let body = Body::from(body.to_string().into_bytes());
            send.send_response(Response::builder().status(code).body(body).unwrap());
        }
        api.next_request().await.unwrap();
        assert!(liveness.alive());
        assert!(liveness.refuses_gates("locked") && !liveness.refuses_gates("ci"));
        let counted = [LeaseFailure::Forbidden, LeaseFailure::NotFound, LeaseFailure::Other, LeaseFailure::Timeout];
        assert_eq!(counted.map(|failure| metrics.failures.of(failure)), [1, 1, 1, 0]);
        stop.cancel();
        task.await.unwrap();
    }

    #[test]
    fn a_pause_is_within_a_tenth() {
        for _ in 0..1000 {
            let pause = jittered(Duration::from_secs(10));
            assert!((Duration::from_secs(9)..=Duration::from_secs(11)).contains(&pause), "{pause:?}");
        }
    }
}
