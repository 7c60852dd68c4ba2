//! A pod under change: explicit operations on the raw object, each applied at once, so that the next one sees it.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Value, json};

use super::entrypoint::Change;
use super::model::{Pod, Status};

/// A raw pod, and what was done to it.
#[derive(Clone, Debug)]
pub(super) struct Edit {
    raw: Value,
    operations: Vec<PatchOperation>,
}

impl Edit {
    pub(super) fn new(raw: &Value) -> Self {
        Self { raw: raw.clone(), operations: Vec::new() }
    }

    /// The pod as it is by now. One that is being created has no status, whatever its author wrote there.
    ///
    /// # Errors
    /// If a field that is read has another type than Kubernetes gives it.
    pub(super) fn pod(&self) -> Result<Pod, serde_json::Error> {
        let mut pod = Pod::from_raw(&self.raw)?;
        pod.status = Status::default();
        Ok(pod)
    }

    /// All that was done, in order.
    pub(super) fn into_patch(self) -> Patch {
        Patch(self.operations)
    }

    /// The raw value at a place.
    pub(super) fn get(&self, path: &[&str]) -> Option<&Value> {
        self.raw.pointer(PointerBuf::from_tokens(path.iter().copied()).as_str())
    }

    /// Appends to an array, which is made if it is absent.
    pub(super) fn push(&mut self, array: &[&str], value: Value) {
        if self.get(array).is_some_and(Value::is_array) {
            self.add(&[array, &["-"]].concat(), value);
        } else {
            self.add(array, Value::Array(vec![value]));
        }
    }

    /// Takes an element out of an array.
    pub(super) fn take(&mut self, array: &[&str], at: usize) -> Value {
        let at = at.to_string();
        let path = [array, &[at.as_str()]].concat();
        let value = self.get(&path).cloned().unwrap_or_default();
        self.apply(PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(path) }));
        value
    }

    /// Changes the arguments of a container of `spec.containers`.
    pub(super) fn change_args(&mut self, container: usize, change: Change) {
        let container = container.to_string();
        let args = ["spec", "containers", container.as_str(), "args"];
        match change {
            Change::Replace(at, argument) => {
                let path = PointerBuf::from_tokens([&args[..], &[at.to_string().as_str()]].concat());
                self.apply(PatchOperation::Replace(ReplaceOperation { path, value: argument.into() }));
            }
            Change::Prepend(arguments) => {
                for (at, argument) in arguments.into_iter().enumerate() {
                    self.add(&[&args[..], &[at.to_string().as_str()]].concat(), argument.into());
                }
            }
        }
    }

    pub(super) fn set_annotation(&mut self, key: &str, value: &str) {
        let map = ["metadata", "annotations"];
        if self.get(&[&map[..], &[key]].concat()).is_some_and(|before| before == value) {
            return;
        }
        if !self.get(&map).is_some_and(Value::is_object) {
            self.add(&map, json!({}));
        }
        self.add(&[&map[..], &[key]].concat(), value.into());
    }

    pub(super) fn remove_annotation(&mut self, key: &str) {
        let path = ["metadata", "annotations", key];
        if self.get(&path).is_some() {
            self.apply(PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(path) }));
        }
    }

    fn add(&mut self, path: &[&str], value: Value) {
        self.apply(PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(path.iter().copied()), value }));
    }

    fn apply(&mut self, operation: PatchOperation) {
        // Paths are made of what stands. Should one not fit all the same, the API server says so, and takes the pod as it is.
        let fits = json_patch::patch(&mut self.raw, std::slice::from_ref(&operation)).is_ok();
        debug_assert!(fits, "{operation:?}");
        self.operations.push(operation);
    }
}
