//! Readiness that nobody has to remember to switch on: whoever must be waited for holds a token, and the process is ready
//! once the last one is dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which tokens are still held; clones share them.
///
/// Every token has to be taken before the first look at [`Readiness::state`] is answered: with none yet, the process is
/// ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    waiting: Vec<&'static str>,
    stopping: bool,
}

/// Held by a component until it can do its work.
#[derive(Debug)]
#[must_use = "a token that is dropped says that the wait is over"]
pub struct Token {
    readiness: Readiness,
    name: &'static str,
}

/// What `/readyz` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Send requests.
    Ready,
    /// Not yet: these are waited for.
    Waiting(Vec<&'static str>),
    /// Not any more, and never again.
    Stopping,
}

impl Readiness {
    /// A token for `name`, which says what is waited for (`certificate`).
    pub fn token(&self, name: &'static str) -> Token {
        self.inner().waiting.push(name);
        Token { readiness: self.clone(), name }
    }

    /// Unready from now on, whatever the tokens say.
    pub fn stop(&self) {
        self.inner().stopping = true;
    }

    /// Ready, or why not.
    #[must_use]
    pub fn state(&self) -> State {
        let inner = self.inner();
        if inner.stopping {
            State::Stopping
        } else if inner.waiting.is_empty() {
            State::Ready
        } else {
            State::Waiting(inner.waiting.clone())
        }
    }

    /// A list of names is whole whatever panicked beside it.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        let mut inner = self.readiness.inner();
        if let Some(at) = inner.waiting.iter().position(|name| *name == self.name) {
            inner.waiting.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_the_last_token_is_dropped() {
        let readiness = Readiness::default();
        let certificate = readiness.token("certificate");
        let lease = readiness.token("lease");
        assert_eq!(readiness.state(), State::Waiting(vec!["certificate", "lease"]));
        drop(certificate);
        assert_eq!(readiness.state(), State::Waiting(vec!["lease"]));
        drop(lease);
        assert_eq!(readiness.state(), State::Ready);
    }

    #[test]
    fn one_of_two_tokens_of_a_name_does_not_speak_for_the_other() {
        let readiness = Readiness::default();
        let (one, other) = (readiness.token("watch"), readiness.token("watch"));
        drop(one);
        assert_eq!(readiness.state(), State::Waiting(vec!["watch"]));
        drop(other);
        assert_eq!(readiness.state(), State::Ready);
    }

    #[test]
    fn a_stop_is_for_good() {
        let readiness = Readiness::default();
        readiness.stop();
        drop(readiness.token("late"));
        assert_eq!(readiness.state(), State::Stopping);
    }
}
