//! Whether pods are seen at all: whoever does not see them cannot open a gate, and must not lead.

use std::collections::HashSet;
use std::sync::Mutex;

use tokio::sync::watch;

use super::store::{Scope, lock};

/// One eye for each scope. With several, one that fails may be a namespace that we were shut out of, and the others are to
/// be looked after all the same.
#[derive(Debug)]
pub(crate) struct Eyes {
    count: usize,
    state: Mutex<State>,
    sees: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    open: bool,
    blind: HashSet<Scope>,
}

impl Eyes {
    pub(crate) fn new(count: usize, sees: watch::Sender<bool>) -> Self {
        Self { count, state: Mutex::default(), sees }
    }

    /// Everything has been listed once.
    pub(crate) fn open(&self) {
        self.change(|state| state.open = true);
    }

    /// This one sees.
    pub(crate) fn sees(&self, scope: &Scope) {
        self.change(|state| {
            state.blind.remove(scope);
        });
    }

    /// This one has not seen for a while.
    pub(crate) fn is_blind(&self, scope: &Scope) {
        self.change(|state| {
            state.blind.insert(scope.clone());
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let sees = state.open && state.blind.len() < self.count;
        self.sees.send_if_modified(|seen| std::mem::replace(seen, sees) != sees);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_eye_is_enough_and_without_a_first_look_there_is_none() {
        let (sender, sees) = watch::channel(false);
        let scopes = ["ci", "cd"].map(|name| Scope::Namespace(name.into()));
        let eyes = Eyes::new(scopes.len(), sender);
        eyes.sees(&scopes[0]);
        assert!(!*sees.borrow(), "there was no first look");
        eyes.open();
        assert!(*sees.borrow());
        eyes.is_blind(&scopes[0]);
        assert!(*sees.borrow());
        eyes.is_blind(&scopes[1]);
        assert!(!*sees.borrow());
        eyes.sees(&scopes[0]);
        assert!(*sees.borrow());
    }
}
