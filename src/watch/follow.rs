//! One list and watch, for as long as the process lives: with backoff, with few words in the log, and with the fallbacks
//! that kube's watcher leaves to its caller.

use std::fmt::Debug;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::StreamExt;
use kube::api::{Api, Resource};
use kube::runtime::watcher::{self, Event, InitialListStrategy, watcher};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::cluster::ANSWER_TIMEOUT;
use crate::metrics::controller::{Metrics, Watched};

/// How long a watch that failed waits before it is tried again: at most, and to begin with.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
const SHORTEST_BACKOFF: Duration = Duration::from_millis(250);

/// How long a watch may fail, try after try, before it is blind.
pub(crate) const BLIND_AFTER: Duration = Duration::from_secs(15);
/// A try that has not failed for so long has succeeded, even if nothing has happened since that there would be to see.
const WELL_AFTER: Duration = ANSWER_TIMEOUT.saturating_add(Duration::from_secs(5));

/// What a watch has to say.
#[derive(Debug)]
pub(crate) enum Told<K> {
    /// An event.
    Event(Event<K>),
    /// We are not permitted to see it. Said again after each try.
    Refused,
    /// It has failed for [`BLIND_AFTER`]: what is known is what was.
    Blind,
    /// It is blind no more.
    Well,
}

/// Tries in a row that failed.
#[derive(Debug, Default)]
struct Failing {
    since: Option<Instant>,
    tried: Option<Instant>,
    blind: bool,
}

impl Failing {
    /// One failed, and the next begins after `pause`. Is it blind from now on?
    fn failed(&mut self, now: Instant, pause: Duration) -> bool {
        let goes_on = self.blind || self.tried.is_some_and(|tried| now.duration_since(tried) < WELL_AFTER);
        let since = *self.since.insert(self.since.filter(|_| goes_on).unwrap_or(now));
        self.tried = Some(now + pause);
        let was_blind = std::mem::replace(&mut self.blind, now.duration_since(since) >= BLIND_AFTER);
        self.blind && !was_blind
    }

    /// Something was seen. Was it blind until now?
    fn saw(&mut self) -> bool {
        std::mem::take(self).blind
    }
}

/// Delays that grow to `longest`, with jitter, for ever.
pub(crate) fn delays(shortest: Duration, longest: Duration) -> impl Iterator<Item = Duration> + Send {
    ExponentialBuilder::default()
        .with_min_delay(shortest)
        .with_max_delay(longest)
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Asks for the initial list as a stream, where the API server does that without being told to: it need not hold the
/// whole list in memory then, and neither need we.
pub(crate) fn config(streams: bool) -> watcher::Config {
    let config = watcher::Config::default();
    if streams { config.streaming_lists() } else { config }
}

/// Follows a resource until it turns out not to be served; never returns if it is.
pub(crate) async fn follow<K>(
    api: Api<K>,
    mut config: watcher::Config,
    what: Watched,
    metrics: &Metrics,
    mut tell: impl FnMut(Told<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let url = api.resource_url().to_owned();
    let mut complaint = None;
    let mut backoff = delays(SHORTEST_BACKOFF, LONGEST_BACKOFF);
    let mut failing = Failing::default();
    'again: loop {
        let mut events = Box::pin(watcher(api.clone(), config.clone()));
        while let Some(event) = events.next().await {
            let error = match event {
                Ok(event) => {
                    // The start of a list is no success: kube announces it before it asks.
                    let sees = !matches!(event, Event::Init);
                    if sees {
                        backoff = delays(SHORTEST_BACKOFF, LONGEST_BACKOFF);
                        if complaint.take().is_some() {
                            info!(url, "the watch is well again");
                        }
                    }
                    tell(Told::Event(event));
                    if sees && failing.saw() {
                        tell(Told::Well);
                    }
                    continue;
                }
                Err(error) => error,
            };
            let trouble = trouble(&error);
            match trouble {
                Trouble::NoStream if config.initial_list_strategy == InitialListStrategy::StreamingList => {
                    info!(url, "the API server does not stream lists: asking for pages");
                    config.initial_list_strategy = InitialListStrategy::ListWatch;
                    continue 'again;
                }
                Trouble::NotServed => return,
                Trouble::Refused => tell(Told::Refused),
                Trouble::NoStream | Trouble::Other => {}
            }
            metrics.watch_error(what);
            let words = error.to_string();
            if complaint.as_ref() != Some(&words) {
                warn!(url, error = words, "the watch fails: trying again");
                complaint = Some(words);
            }
            let pause = backoff.next().unwrap_or(LONGEST_BACKOFF);
            let blinded = failing.failed(Instant::now(), pause);
            if blinded {
                warn!(url, "nothing has been seen for {BLIND_AFTER:?}: what there is may have changed");
                tell(Told::Blind);
            }
            tokio::time::sleep(pause).await;
            if blinded || matches!(trouble, Trouble::Refused) {
                // What was known is given up, so a watch that merely goes on would not do (nor would it show that it is
                // well, while nothing happens): it begins with a list again.
                continue 'again;
            }
        }
    }
}

enum Trouble {
    NoStream,
    NotServed,
    Refused,
    Other,
}

fn trouble(error: &watcher::Error) -> Trouble {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))) = error
    else {
        return Trouble::Other;
    };
    match status.code {
        400 | 422 => Trouble::NoStream,
        403 => Trouble::Refused,
        404 => Trouble::NotServed,
        _ => Trouble::Other,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Fails at these seconds, and tries again a second later each time.
    #[rstest]
    #[case::for_fifteen_seconds(&[0, 2, 4, 8, 14], false)]
    #[case::for_longer(&[0, 2, 4, 8, 15], true)]
    #[case::again_after_a_while_in_which_all_was_well(&[0, 8, 34], false)]
    #[case::with_tries_that_take_their_time(&[0, 21], true)]
    fn a_watch_that_failed_is_blind(#[case] failures: &[u64], #[case] expected: bool) {
        let (start, second) = (Instant::now(), Duration::from_secs);
        let mut failing = Failing::default();
        let blinded = failures.iter().filter(|at| failing.failed(start + second(**at), second(1))).count();
        assert_eq!((blinded, failing.blind), (usize::from(expected), expected));
        assert_eq!(failing.saw(), expected);
        assert!(!failing.failed(start + second(100), second(1)), "and starts anew once something was seen");
    }
}
