//! What is logged, where, and how much of it.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    #[default]
    Json,
    /// For people.
    Text,
}

/// Why nothing is logged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter cannot be read.
    #[error("the log filter \"{filter}\" is not of the form info,kickstand=debug: {source}")]
    Filter {
        /// As it was given.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Somebody was here before.
    #[error("logging is set up already: {0}")]
    AlreadySet(#[from] TryInitError),
}

/// Logs to standard error from now on, panics included. `filter` is of tracing's form (`info,kickstand=debug`).
///
/// # Errors
/// If the filter cannot be read, or logging was set up before; the latter harms nothing.
pub fn init(format: Format, filter: &str) -> Result<(), Error> {
    let parsed =
        EnvFilter::builder().parse(filter).map_err(|source| Error::Filter { filter: filter.to_owned(), source })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        Format::Json => builder.json().flatten_event(true).with_current_span(false).finish().try_init()?,
        Format::Text => builder.finish().try_init()?,
    }
    // A panic must not be the one line that the log's reader cannot parse.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref().map(String::as_str));
        tracing::error!(panic = text.unwrap_or("(no text)"), place, "panicked");
    }));
    Ok(())
}

/// Lets so many log lines through in a second, and counts the others: whoever can reach the listener must not be able to
/// fill a disk.
#[derive(Debug)]
pub struct Throttle {
    a_second: u32,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    passed: u32,
    left_out: u64,
}

impl Throttle {
    /// Lets `a_second` lines through in any second.
    #[must_use]
    pub fn new(a_second: u32) -> Self {
        Self { a_second, window: Mutex::new(Window { began: Instant::now(), passed: 0, left_out: 0 }) }
    }

    /// `None`: be silent. Otherwise speak, and say how many lines were left out since the last one.
    pub fn pass(&self) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.elapsed() >= Duration::from_secs(1) {
            window.began = Instant::now();
            window.passed = 0;
        }
        if window.passed >= self.a_second {
            window.left_out += 1;
            return None;
        }
        window.passed += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

/// The beginning of a text that somebody else chose, and may have made long.
#[must_use]
pub fn shortened(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(at, _)| &text[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_call_and_a_bad_filter_are_errors_and_no_panics() {
        assert!(matches!(init(Format::Text, "kickstand=loud"), Err(Error::Filter { .. })));
        // The harness tells of a failed test by the hook that is there before.
        let hook = std::panic::take_hook();
        init(Format::Json, "off").unwrap();
        std::panic::set_hook(hook);
        assert!(matches!(init(Format::Text, "off"), Err(Error::AlreadySet(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_counted_and_not_told() {
        let throttle = Throttle::new(2);
        assert_eq!([throttle.pass(), throttle.pass()], [Some(0), Some(0)]);
        assert_eq!([throttle.pass(), throttle.pass(), throttle.pass()], [None; 3]);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!([throttle.pass(), throttle.pass()], [Some(3), Some(0)]);
    }

    #[test]
    fn a_text_is_shortened_between_characters() {
        assert_eq!(shortened("häuser", 2), "hä");
        assert_eq!(shortened("haus", 4), "haus");
    }
}
