//! One list and watch, for as long as the process lives: with backoff, with few words in the log, and with the fallbacks
//! that kube's watcher leaves to its caller.

use std::fmt::Debug;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::StreamExt;
use kube::api::{Api, Resource};
use kube::runtime::watcher::{self, Event, InitialListStrategy, watcher};
use serde::de::DeserializeOwned;
use tracing::{info, warn};

use crate::metrics::controller::{Metrics, Watched};

/// How long a watch that failed waits before it is tried again: at most, and to begin with.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
const SHORTEST_BACKOFF: Duration = Duration::from_millis(250);

/// What a watch has to say.
#[derive(Debug)]
pub(crate) enum Told<K> {
    /// An event.
    Event(Event<K>),
    /// We are not permitted to see it. Said again after each try.
    Refused,
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
    'again: loop {
        let mut events = Box::pin(watcher(api.clone(), config.clone()));
        while let Some(event) = events.next().await {
            let error = match event {
                Ok(event) => {
                    // The start of a list is no success: kube announces it before it asks.
                    if !matches!(event, Event::Init) {
                        backoff = delays(SHORTEST_BACKOFF, LONGEST_BACKOFF);
                        if complaint.take().is_some() {
                            info!(url, "the watch is well again");
                        }
                    }
                    tell(Told::Event(event));
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
            tokio::time::sleep(backoff.next().unwrap_or(LONGEST_BACKOFF)).await;
            if matches!(trouble, Trouble::Refused) {
                // What was known is given up, so a watch that merely goes on would not do: it begins with a list again.
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
