//! The webhook's early call, before the injectors': those that have a native mode are asked for it. An injector is never
//! moved: called again, it would add its container a second time.

use json_patch::Patch;
use serde_json::Value;

use super::contract::{Settings, opted_out};
use super::edit::Edit;
use super::mutate::Options;
use super::native::{self, Stays};
use super::tekton;

/// What the early call makes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Asking {
    /// Annotations, or nothing.
    pub patch: Patch,
    /// The annotations that were set, or why none; `None` where the pod is none of our business.
    pub asked: Option<Result<Vec<String>, Stays>>,
}

/// Asks the injectors for native sidecars, if that can leave the pod without a classic one.
///
/// # Errors
/// If `raw` is no Pod: a field that is read has another type than Kubernetes gives it.
pub fn ask(raw: &Value, options: &Options<'_>) -> Result<Asking, serde_json::Error> {
    let mut edit = Edit::new(raw);
    let pod = edit.pod()?;
    if tekton::eligible(&pod).is_err() || opted_out(&pod) {
        return Ok(Asking { patch: edit.into_patch(), asked: None });
    }
    let (settings, _) = Settings::of(&pod);
    let cluster = options.native.clone();
    let may = native::allowed(&pod, &settings, options.known, cluster, options.controller_alive)
        .and_then(|()| native::movable(&pod, options.known));
    let asked = may.map(|_| {
        let asks: Vec<(&str, &str)> = options.known.asks(&pod).collect();
        for (key, value) in &asks {
            edit.set_annotation(key, value);
        }
        asks.into_iter().map(|(key, _)| key.to_owned()).collect()
    });
    Ok(Asking { patch: edit.into_patch(), asked: Some(asked) })
}
