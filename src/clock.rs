//! The only place that asks what time it is.

use jiff::Timestamp;

/// Now.
#[must_use]
#[allow(clippy::disallowed_methods)]
pub fn now() -> Timestamp {
    Timestamp::now()
}
