//! An API server in memory: enough of one to list, watch, patch and refuse. No sockets, so that time can be paused.

mod api;
pub(crate) mod objects;

pub(crate) use api::FakeApi;

use std::cell::RefCell;

use jiff::Timestamp;
use tokio::time::Instant;

thread_local! {
    static START: RefCell<Option<(Timestamp, Instant)>> = const { RefCell::new(None) };
}

/// A clock that goes with tokio's, paused or not.
pub(crate) fn now() -> Timestamp {
    let (time, instant) = START.with_borrow_mut(|start| *start.get_or_insert_with(|| (start_time(), Instant::now())));
    time + instant.elapsed()
}

/// When every test begins.
pub(crate) fn start_time() -> Timestamp {
    "2026-12-01T12:00:00Z".parse().unwrap()
}

/// So many seconds after (or before) a test's beginning, as objects write it.
pub(crate) fn at(seconds: i64) -> String {
    (start_time() + jiff::SignedDuration::from_secs(seconds)).to_string()
}
