//! An action as a JSON Patch, guarded by `test` operations: if the world has moved on, nothing happens.

use jiff::Timestamp;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, ReplaceOperation, TestOperation};
use serde_json::{Value, json};

use super::contract::{self, ORIGINAL_IMAGES, READY, Stopped};
use super::decide::Order;
use super::model::Pod;

/// Opens the gate.
#[must_use]
pub fn open_gate(pod: &Pod, now: Timestamp) -> Patch {
    let mut operations = vec![same_pod(pod)];
    operations.extend(annotate(pod, READY, now.to_string()));
    Patch(operations)
}

/// Stops sidecars, and notes what they ran.
#[must_use]
pub fn stop(pod: &Pod, orders: &[Order], nop_image: &str, now: Timestamp) -> Patch {
    let mut operations = vec![same_pod(pod)];
    let mut stopped = contract::stopped(pod);
    for order in orders {
        let container = ["spec".to_owned(), "containers".to_owned(), order.index.to_string()];
        let field = |name: &str| PointerBuf::from_tokens(container.iter().map(String::as_str).chain([name]));
        operations.push(test(field("name"), order.name.as_str().into()));
        operations.push(test(field("image"), order.from.as_str().into()));
        let value = order.how.image(nop_image).into();
        operations.push(PatchOperation::Replace(ReplaceOperation { path: field("image"), value }));
        stopped.insert(order.name.clone(), Stopped { image: order.from.clone(), at: now });
    }
    operations.extend(annotate(pod, ORIGINAL_IMAGES, json!(stopped).to_string()));
    Patch(operations)
}

/// Ends the pod: a deadline of one second is over. The API server takes a shorter one, never a longer.
#[must_use]
pub fn end(pod: &Pod) -> Patch {
    let path = PointerBuf::from_tokens(["spec", "activeDeadlineSeconds"]);
    Patch(vec![same_pod(pod), PatchOperation::Add(AddOperation { path, value: 1.into() })])
}

/// A pod of the same name may be another one by now.
fn same_pod(pod: &Pod) -> PatchOperation {
    test(PointerBuf::from_tokens(["metadata", "uid"]), pod.metadata.uid.as_str().into())
}

fn annotate(pod: &Pod, key: &str, value: String) -> Vec<PatchOperation> {
    let add = |tokens: &[&str], value| {
        let path = PointerBuf::from_tokens(tokens.iter().copied());
        PatchOperation::Add(AddOperation { path, value })
    };
    if pod.metadata.annotations.is_empty() {
        // Adding the map would wipe one that appeared since: only on the very version that was seen.
        let version = PointerBuf::from_tokens(["metadata", "resourceVersion"]);
        return vec![
            test(version, pod.metadata.resource_version.as_str().into()),
            add(&["metadata", "annotations"], json!({ key: value })),
        ];
    }
    vec![add(&["metadata", "annotations", key], value.into())]
}

fn test(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path, value })
}
