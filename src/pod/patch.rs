//! An action as a JSON Patch, guarded by `test` operations: if the world has moved on, nothing happens.

use jiff::Timestamp;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, ReplaceOperation, TestOperation};
use serde_json::{Value, json};

use super::contract::{self, NUDGED, ORIGINAL_IMAGES, READY, Stopped};
use super::decide::{LAST_DEADLINE_SECONDS, Order};
use super::model::Pod;

/// Opens the gate.
#[must_use]
pub fn open_gate(pod: &Pod, now: Timestamp) -> Patch {
    let mut operations = vec![same_pod(pod)];
    operations.extend(annotate(pod, READY, now.to_string()));
    Patch(operations)
}

/// Makes the kubelet look at the pod once more: any change of an annotation does.
#[must_use]
pub fn nudge(pod: &Pod, now: Timestamp) -> Patch {
    let mut operations = vec![same_pod(pod)];
    operations.extend(annotate(pod, NUDGED, now.to_string()));
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
        stopped.entry(order.name.clone()).or_insert_with(|| Stopped { image: order.from.clone(), at: now });
    }
    operations.extend(annotate(pod, ORIGINAL_IMAGES, json!(stopped).to_string()));
    Patch(operations)
}

/// Ends the pod: a deadline of one second is over. The API server takes a shorter one, never a longer.
#[must_use]
pub fn end(pod: &Pod) -> Patch {
    let path = PointerBuf::from_tokens(["spec", "activeDeadlineSeconds"]);
    Patch(vec![same_pod(pod), PatchOperation::Add(AddOperation { path, value: LAST_DEADLINE_SECONDS.into() })])
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

#[cfg(test)]
mod tests {
    use super::super::decide::How;
    use super::super::decide::tests::build::{NOP, at, c, pod};
    use super::*;

    fn order(index: usize, name: &str, how: How) -> Order {
        Order { index, name: name.to_owned(), from: format!("registry.example/{name}:1"), how }
    }

    fn text(patch: &Patch) -> String {
        let operations: Vec<String> = patch.0.iter().map(|operation| json!(operation).to_string()).collect();
        operations.join("\n")
    }

    #[test]
    fn the_gate_opens_by_an_annotation() {
        let pod = pod().gated().step(c("one")).build();
        insta::assert_snapshot!(text(&open_gate(&pod, at(10))), @r#"
        {"op":"test","path":"/metadata/uid","value":"pod-uid"}
        {"op":"add","path":"/metadata/annotations/kickstand.dev~1ready","value":"2026-01-01T10:00:10Z"}
        "#);
    }

    #[test]
    fn a_nudge_leaves_the_time_of_the_opening_alone() {
        let pod = pod().opened().step(c("one")).build();
        insta::assert_snapshot!(text(&nudge(&pod, at(11))), @r#"
        {"op":"test","path":"/metadata/uid","value":"pod-uid"}
        {"op":"add","path":"/metadata/annotations/kickstand.dev~1nudged","value":"2026-01-01T10:00:11Z"}
        "#);
    }

    #[test]
    fn a_pod_without_annotations_gets_them_only_if_it_is_the_very_one_that_was_seen() {
        let pod = pod().set("/metadata/annotations", Value::Null).step(c("one")).build();
        insta::assert_snapshot!(text(&open_gate(&pod, at(10))), @r#"
        {"op":"test","path":"/metadata/uid","value":"pod-uid"}
        {"op":"test","path":"/metadata/resourceVersion","value":"7"}
        {"op":"add","path":"/metadata/annotations","value":{"kickstand.dev/ready":"2026-01-01T10:00:10Z"}}
        "#);
    }

    #[test]
    fn sidecars_are_stopped_by_their_image_and_it_is_noted_what_they_ran() {
        let pod = pod()
            .step(c("one"))
            .sidecar(c("web"))
            .sidecar(c("istio-proxy"))
            .stopped("helper", "registry.example/helper:1", 61)
            .build();
        let orders = [order(1, "web", How::Nop), order(2, "istio-proxy", How::Ended)];
        insta::assert_snapshot!(text(&stop(&pod, &orders, NOP, at(70))), @r#"
        {"op":"test","path":"/metadata/uid","value":"pod-uid"}
        {"op":"test","path":"/spec/containers/1/name","value":"web"}
        {"op":"test","path":"/spec/containers/1/image","value":"registry.example/web:1"}
        {"op":"replace","path":"/spec/containers/1/image","value":"registry.example/kickstand/nop:2"}
        {"op":"test","path":"/spec/containers/2/name","value":"istio-proxy"}
        {"op":"test","path":"/spec/containers/2/image","value":"registry.example/istio-proxy:1"}
        {"op":"replace","path":"/spec/containers/2/image","value":"kickstand.dev/Ended"}
        {"op":"add","path":"/metadata/annotations/kickstand.dev~1original-images","value":"{\"helper\":{\"image\":\"registry.example/helper:1\",\"at\":\"2026-01-01T10:01:01Z\"},\"istio-proxy\":{\"image\":\"registry.example/istio-proxy:1\",\"at\":\"2026-01-01T10:01:10Z\"},\"web\":{\"image\":\"registry.example/web:1\",\"at\":\"2026-01-01T10:01:10Z\"}}"}
        "#);
    }

    #[test]
    fn a_pod_is_ended_by_its_deadline() {
        let pod = pod().deadline(5400).step(c("one")).build();
        insta::assert_snapshot!(text(&end(&pod)), @r#"
        {"op":"test","path":"/metadata/uid","value":"pod-uid"}
        {"op":"add","path":"/spec/activeDeadlineSeconds","value":1}
        "#);
    }

    #[test]
    fn a_note_that_is_not_ours_is_replaced() {
        let pod = pod().sidecar(c("web")).annotated(ORIGINAL_IMAGES, "{\"web\":").build();
        let patch = text(&stop(&pod, &[order(0, "web", How::Nop)], NOP, at(70)));
        assert!(
            patch.contains(r#"{\"web\":{\"image\":\"registry.example/web:1\",\"at\":\"2026-01-01T10:01:10Z\"}}"#),
            "{patch}"
        );
    }
}
