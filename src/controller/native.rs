//! What the webhook is told of native sidecars, while we lead: whether the cluster can run them, and where they were
//! refused.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, warn};

use crate::metrics::controller::Metrics;
use crate::pod::contract::ALLOW_NATIVE;
use crate::pod::facts::{Facts, Native};
use crate::pod::refusals::{Refusal, Refusals};

/// Refusals are forgotten in silence: how often the gauges are looked after.
const COUNT_EVERY: Duration = Duration::from_secs(30);

/// What is known of it.
pub(super) struct Keeper {
    /// Whether we lead.
    pub(super) leader: watch::Receiver<bool>,
    /// Whether nodes and API server can; `None` = not known.
    pub(super) can: watch::Receiver<Option<Native>>,
    /// TaskRuns whose pods were refused, as they are seen.
    pub(super) refusals: mpsc::UnboundedReceiver<Refusal>,
    /// What is told.
    pub(super) facts: watch::Sender<Facts>,
    pub(super) now: fn() -> Timestamp,
    pub(super) metrics: Metrics,
}

impl Keeper {
    /// Never returns.
    pub(super) async fn run(mut self) {
        let mut seen = Refusals::default();
        let mut since = None;
        let mut told = self.facts.subscribe();
        let mut count = interval(COUNT_EVERY);
        count.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let leading = *self.leader.borrow_and_update();
            let can = self.can.borrow_and_update().clone();
            let now = (self.now)();
            if leading {
                let since = *since.get_or_insert(now);
                // What a predecessor said is its word, not ours: even if ours is that we do not know.
                self.facts.send_if_modified(|facts| {
                    let news = facts.native != can;
                    facts.native = can;
                    news
                });
                for refusal in seen.news(since, now) {
                    self.count(&refusal, now);
                }
            } else {
                since = None;
            }
            self.gauge(leading, &told.borrow_and_update());
            let open = tokio::select! {
                changed = self.leader.changed() => changed.is_ok(),
                changed = self.can.changed() => changed.is_ok(),
                changed = told.changed() => changed.is_ok(),
                refusal = self.refusals.recv() => match refusal {
                    Some(refusal) => {
                        seen.saw(refusal, (self.now)());
                        true
                    }
                    None => false,
                },
                _ = count.tick() => true,
            };
            if !open {
                // The controller is about to say which part of it has ended.
                std::future::pending::<()>().await;
            }
        }
    }

    fn count(&self, refusal: &Refusal, now: Timestamp) {
        let Refusal { namespace, name, .. } = refusal;
        self.metrics.native_refused();
        warn!(
            namespace,
            task_run = name,
            "the API server refused a pod, since a webhook takes restartPolicy away from its native sidecars: for an hour no \
             pod of this namespace gets any. Next: find the webhook that rewrites init containers, and update it"
        );
        self.facts.send_if_modified(|facts| {
            let before = facts.native_refused_everywhere;
            let news = facts.native_was_refused(namespace, now);
            if facts.native_refused_everywhere && !before {
                let namespaces: Vec<&str> = facts.native_refused.keys().map(String::as_str).collect();
                error!(
                    namespaces = namespaces.join(", "),
                    "native sidecars were refused in several namespaces: no pod of this cluster gets any more. Next: update \
                     the webhook that takes restartPolicy away, then annotate the Lease with {ALLOW_NATIVE}=true"
                );
            }
            news
        });
    }

    fn gauge(&self, leading: bool, facts: &Facts) {
        let possible = facts.native == Some(Native::Possible) && !facts.native_refused_everywhere;
        let refused = if leading { facts.native_refused.len() } else { 0 };
        self.metrics.native(leading && possible, refused);
    }
}
