//! Which replica acts: the one that holds a Lease.
//!
//! No clock is compared with another's. A standby takes a Lease over when it has seen nobody renew it for as long as its
//! holder promised to, by the standby's own clock; every write is a patch that tests the version it was decided on, so
//! of two takers one fails. The holder gives up by itself, at the latest `give_up_after` the last renewal that succeeded
//! was *sent*: while that is shorter than the promise, it has ceased before anybody else can begin.
//!
//! Permissions, in the Lease's namespace: `get` and `patch` on the Lease by its name; `create` if it is not there.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::effects::REPORTER;
use crate::pod::contract::{ALLOW_NATIVE, FACTS};
use crate::pod::facts::Facts;
use crate::watch::delays;

/// How long a holder's promise lasts.
pub const DURATION: Duration = Duration::from_secs(15);
/// How often it is renewed.
pub const RENEW_EVERY: Duration = Duration::from_secs(5);
/// How long after the last renewal a holder that cannot renew gives up.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// How soon after a renewal comes the next, if there is news to be told.
const NEWS_AFTER: Duration = Duration::from_secs(1);
/// How often a standby looks, and a holder in trouble tries.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Which Lease, and whose.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The Lease's namespace.
    pub namespace: String,
    /// The Lease's name.
    pub name: String,
    /// This process, among all that may want the Lease: the pod's name will do, since a pod runs one at a time.
    pub identity: String,
    /// The clock, for the times that people read; nothing is decided by it.
    pub now: fn() -> Timestamp,
}

/// A replica that leads when it can.
pub struct Candidate {
    leases: Api<Lease>,
    settings: Settings,
    leading: watch::Sender<bool>,
    sees: watch::Receiver<bool>,
    facts: watch::Sender<Facts>,
}

/// Why a request about the Lease did not do what was asked.
#[derive(Debug, thiserror::Error)]
enum Setback {
    #[error("somebody else wrote the Lease first")]
    Beaten,
    #[error("no answer within {REQUEST_TIMEOUT:?}")]
    Silence,
    #[error("{0}")]
    Kube(#[from] kube::Error),
}

/// What a look at the Lease leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// It is ours, or nobody's, or was abandoned.
    Take,
    /// It is another's.
    Wait,
}

/// What a standby has seen of the Lease: the last sign of life, and when, by its own clock.
#[derive(Debug, Default)]
struct Watcher {
    sign: Option<(String, Option<Timestamp>, Option<i32>)>,
    at: Option<Instant>,
}

impl Watcher {
    fn look(&mut self, spec: &LeaseSpec, identity: &str, now: Instant) -> Move {
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder.is_empty() || holder == identity {
            return Move::Take;
        }
        let sign = Some((holder, spec.renew_time.as_ref().map(|time| time.0), spec.lease_transitions));
        if self.sign != sign || self.at.is_none() {
            self.sign = sign;
            self.at = Some(now);
        }
        let promised = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let promised = promised.map_or(DURATION, Duration::from_secs);
        let silent = self.at.map(|at| now.duration_since(at)).unwrap_or_default();
        if silent >= promised { Move::Take } else { Move::Wait }
    }
}

impl Candidate {
    /// A candidate, and whether it leads. Whoever does not see (`sees`) does not lead, and lets another: the webhook takes
    /// the Lease for a promise that gates are opened. While it leads, what it knows (`facts`) stands on the Lease; when it
    /// begins to, it knows what its predecessor has left there.
    #[must_use]
    pub fn new(
        client: Client,
        settings: Settings,
        sees: watch::Receiver<bool>,
        facts: watch::Sender<Facts>,
    ) -> (Self, watch::Receiver<bool>) {
        let (leading, led) = watch::channel(false);
        let leases = Api::namespaced(client, &settings.namespace);
        (Self { leases, settings, leading, sees, facts }, led)
    }

    /// Leads when it can, until `shutdown`; then gives the Lease up, so that another replica need not wait for it to run
    /// out. Cancel it only once nothing acts on its word any more.
    pub async fn run(self, shutdown: CancellationToken) {
        if self.settings.identity.is_empty() {
            // Every replica without a name would take every other's Lease for its own.
            return error!(lease = self.settings.name, "this replica has no name: it cannot lead");
        }
        let mut seen = Watcher::default();
        let mut sight = self.sees.clone();
        while shutdown.run_until_cancelled(becomes(&mut sight, true)).await.is_some() {
            // Not raced against the shutdown: a request that is dropped may have succeeded, and nobody would know.
            if let Some(renewed) = self.take(&mut seen).await {
                info!(lease = self.settings.name, "this replica leads");
                self.leading.send_replace(true);
                self.hold(renewed, &shutdown).await;
                self.leading.send_replace(false);
                seen = Watcher::default();
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(soon()) => {}
            }
        }
    }

    /// Looks at the Lease, and takes it if it may be taken: returns when the request that took it was sent.
    async fn take(&self, seen: &mut Watcher) -> Option<Instant> {
        let lease = match self.get_or_create().await {
            Ok(lease) => lease,
            Err(setback) => {
                warn!(lease = self.settings.name, %setback, "cannot read the Lease");
                return None;
            }
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if seen.look(&spec, &self.settings.identity, Instant::now()) == Move::Wait {
            return None;
        }
        self.facts.send_replace(Facts::read(noted(&lease)));
        let sent = Instant::now();
        match self.write(&lease, &self.settings.identity).await {
            Ok(_) => Some(sent),
            Err(Setback::Beaten) => None,
            Err(setback) => {
                warn!(lease = self.settings.name, %setback, "cannot take the Lease");
                None
            }
        }
    }

    /// Renews until it fails for too long, or another has the Lease, or it is time to go.
    async fn hold(&self, mut renewed: Instant, shutdown: &CancellationToken) {
        let mut next = renewed + RENEW_EVERY;
        let mut sight = self.sees.clone();
        let mut facts = self.facts.subscribe();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => {
                    self.leading.send_replace(false);
                    return self.release().await;
                }
                () = becomes(&mut sight, false) => {
                    warn!(lease = self.settings.name, "the pods cannot be watched: this replica leads no more");
                    self.leading.send_replace(false);
                    return self.release().await;
                }
                // This holds a sender itself: never an error.
                Ok(()) = facts.changed() => {
                    next = next.min(renewed + NEWS_AFTER);
                    continue;
                }
                () = sleep_until(next) => {}
            }
            let sent = Instant::now();
            let deadline = renewed + GIVE_UP_AFTER;
            match tokio::time::timeout_at(deadline, self.renew()).await {
                Ok(Ok(true)) => {
                    renewed = sent;
                    next = sent + RENEW_EVERY;
                    continue;
                }
                Ok(Ok(false)) => {
                    warn!(lease = self.settings.name, "another replica has the Lease: this one leads no more");
                    return;
                }
                Ok(Err(setback)) => warn!(lease = self.settings.name, %setback, "cannot renew the Lease"),
                Err(_) => {}
            }
            next = Instant::now() + soon();
            if next >= deadline {
                sleep_until(deadline).await;
                warn!(lease = self.settings.name, "the Lease could not be renewed in time: this replica leads no more");
                return;
            }
        }
    }

    /// Renews; `false` if the Lease is not ours any more.
    async fn renew(&self) -> Result<bool, Setback> {
        let lease = self.get().await?;
        if !self.is_ours(&lease) {
            return Ok(false);
        }
        // If somebody was faster, they noted something on it, most likely: whose it is shows the next look.
        self.write(&lease, &self.settings.identity).await.map(|_| true)
    }

    async fn release(&self) {
        for _ in 0..3 {
            let released = match self.get().await {
                Ok(lease) if self.is_ours(&lease) => self.write(&lease, "").await.map(|_| ()),
                Ok(_) => Ok(()),
                Err(setback) => Err(setback),
            };
            match released {
                Ok(()) => return info!(lease = self.settings.name, "gave the Lease up"),
                Err(setback) => debug!(lease = self.settings.name, %setback, "could not give the Lease up"),
            }
        }
        warn!(lease = self.settings.name, "could not give the Lease up: another replica has to wait for it to run out");
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder == Some(self.settings.identity.as_str())
    }

    async fn get(&self) -> Result<Lease, Setback> {
        Ok(timely(self.leases.get(&self.settings.name)).await??)
    }

    async fn get_or_create(&self) -> Result<Lease, Setback> {
        match self.get().await {
            Err(Setback::Kube(kube::Error::Api(status))) if status.code == 404 => {}
            other => return other,
        }
        let metadata = ObjectMeta { name: Some(self.settings.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, ..Lease::default() };
        match timely(self.leases.create(&PostParams::default(), &lease)).await? {
            Err(kube::Error::Api(status)) if status.code == 409 => Err(Setback::Beaten),
            other => Ok(other?),
        }
    }

    /// Writes `holder` into the very version that was read; whatever else the Lease holds stays.
    async fn write(&self, lease: &Lease, holder: &str) -> Result<Lease, Setback> {
        let spec = lease.spec.clone().unwrap_or_default();
        let now = (self.settings.now)();
        let allows = annotation(lease, ALLOW_NATIVE) == Some("true");
        self.facts.send_if_modified(|facts| {
            facts.forget(now);
            let allowed = allows && facts.native_is_allowed();
            if allowed {
                info!(lease = self.settings.name, "an operator allows native sidecars again");
            }
            // To be written it is no news, but others count.
            allowed
        });
        let facts = self.facts.borrow().written();
        let now = MicroTime(now);
        let mut operations = vec![json!({
            "op": "test", "path": "/metadata/resourceVersion", "value": lease.metadata.resource_version,
        })];
        operations.extend(note(lease, facts.as_deref()));
        if allows {
            operations.push(json!({ "op": "remove", "path": path(ALLOW_NATIVE) }));
        }
        if lease.spec.is_none() {
            operations.push(json!({ "op": "add", "path": "/spec", "value": {} }));
        }
        let mut set = |field: &str, value: serde_json::Value| {
            operations.push(json!({ "op": "add", "path": format!("/spec/{field}"), "value": value }));
        };
        if spec.holder_identity.as_deref() != Some(holder) && !holder.is_empty() {
            set("acquireTime", json!(now));
            set("leaseTransitions", json!(spec.lease_transitions.unwrap_or(0).saturating_add(1)));
        }
        set("holderIdentity", json!(holder));
        set("renewTime", json!(now));
        set("leaseDurationSeconds", json!(DURATION.as_secs()));
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).map_err(kube::Error::SerdeError)?;
        let params = PatchParams { field_manager: Some(REPORTER.to_owned()), ..PatchParams::default() };
        match timely(self.leases.patch(&self.settings.name, &params, &Patch::Json::<()>(patch))).await? {
            // 422 is a failed test.
            Err(kube::Error::Api(status)) if matches!(status.code, 409 | 422) => Err(Setback::Beaten),
            other => Ok(other?),
        }
    }
}

/// What a leader has noted on the Lease.
fn noted(lease: &Lease) -> Option<&str> {
    annotation(lease, FACTS)
}

fn annotation<'a>(lease: &'a Lease, key: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Where an annotation stands.
fn path(annotation: &str) -> String {
    format!("/metadata/annotations/{}", annotation.replace('/', "~1"))
}

/// The operations that note this instead.
fn note(lease: &Lease, facts: Option<&str>) -> Vec<serde_json::Value> {
    let path = path(FACTS);
    match (noted(lease), facts) {
        (before, now) if before == now => Vec::new(),
        (_, None) => vec![json!({ "op": "remove", "path": path })],
        (_, Some(facts)) => {
            let none = lease.metadata.annotations.is_none();
            let map = none.then(|| json!({ "op": "add", "path": "/metadata/annotations", "value": {} }));
            map.into_iter().chain([json!({ "op": "add", "path": path, "value": facts })]).collect()
        }
    }
}

/// Ends once it is so; never if nobody can say so any more.
async fn becomes(sees: &mut watch::Receiver<bool>, so: bool) {
    if sees.wait_for(|sees| *sees == so).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn timely<T>(request: impl Future<Output = T>) -> Result<T, Setback> {
    tokio::time::timeout(REQUEST_TIMEOUT, request).await.map_err(|_| Setback::Silence)
}

/// When to look next; never in step with others.
fn soon() -> Duration {
    delays(LOOK_EVERY, LOOK_EVERY).next().unwrap_or(LOOK_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(holder: &str, renewed: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            renew_time: renewed.parse().ok().map(MicroTime),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn what_is_nobodys_or_ours_is_taken() {
        let now = Instant::now();
        assert_eq!(Watcher::default().look(&LeaseSpec::default(), "me", now), Move::Take);
        assert_eq!(Watcher::default().look(&spec("", "2026-01-01T00:00:00Z"), "me", now), Move::Take);
        assert_eq!(Watcher::default().look(&spec("me", "2026-01-01T00:00:00Z"), "me", now), Move::Take);
    }

    #[test]
    fn anothers_is_taken_only_after_watching_it_lie_still_whatever_the_clocks_say() {
        let start = Instant::now();
        let mut seen = Watcher::default();
        let second = Duration::from_secs;
        // Long over, by our clock: the holder's may be an hour behind.
        assert_eq!(seen.look(&spec("other", "2020-01-01T00:00:00Z"), "me", start), Move::Wait);
        assert_eq!(seen.look(&spec("other", "2020-01-01T00:00:00Z"), "me", start + second(14)), Move::Wait);
        assert_eq!(seen.look(&spec("other", "2020-01-01T00:00:05Z"), "me", start + second(15)), Move::Wait);
        assert_eq!(seen.look(&spec("other", "2020-01-01T00:00:05Z"), "me", start + second(29)), Move::Wait);
        assert_eq!(seen.look(&spec("other", "2020-01-01T00:00:05Z"), "me", start + second(30)), Move::Take);
    }

    #[test]
    fn a_holder_gives_up_before_another_may_begin() {
        // The last request it sent as a leader has run out, too.
        assert!(GIVE_UP_AFTER + Duration::from_secs(5) <= DURATION);
        assert!(RENEW_EVERY + REQUEST_TIMEOUT < GIVE_UP_AFTER);
    }
}
