//! TaskRuns and sidecars, as small as they can be said.

use serde_json::{Map, Value, json};

use super::injector::{ANNOTATION, Order};
use super::lab::Images;

/// A TaskRun to be.
#[derive(Clone)]
pub(crate) struct TaskRun {
    name: String,
    annotations: Map<String, Value>,
    labels: Map<String, Value>,
    results: Vec<&'static str>,
    steps: Vec<Value>,
    sidecars: Vec<Sidecar>,
    injected: [Vec<Sidecar>; 2],
    timeout: String,
    retries: u32,
}

impl TaskRun {
    /// One that gives up after ten minutes, so that nothing is left for long.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            annotations: Map::new(),
            labels: Map::new(),
            results: Vec::new(),
            steps: Vec::new(),
            sidecars: Vec::new(),
            injected: [Vec::new(), Vec::new()],
            timeout: "10m".to_owned(),
            retries: 0,
        }
    }

    pub(crate) fn annotate(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), json!(value));
        self
    }

    /// Tekton gives it to the pod, too.
    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), json!(value));
        self
    }

    /// Something that a step writes to `$(results.NAME.path)`.
    pub(crate) fn result(mut self, name: &'static str) -> Self {
        self.results.push(name);
        self
    }

    /// A step that runs a shell script; they are named `one`, `two`, `three`…
    pub(crate) fn step(self, script: &str) -> Self {
        self.step_with(script, json!({}))
    }

    /// The same, with more fields.
    pub(crate) fn step_with(mut self, script: &str, more: Value) -> Self {
        const NAMES: [&str; 4] = ["one", "two", "three", "four"];
        let name = NAMES.get(self.steps.len()).copied().unwrap_or("more");
        let mut step = json!({ "name": name, "command": ["sh", "-c", script] });
        merge(&mut step, more);
        self.steps.push(step);
        self
    }

    /// Declared in the TaskRun.
    pub(crate) fn sidecar(mut self, sidecar: Sidecar) -> Self {
        self.sidecars.push(sidecar);
        self
    }

    /// Injected into the pod by the webhook of this program.
    pub(crate) fn injected(mut self, order: Order, sidecar: Sidecar) -> Self {
        self.injected[order as usize].push(sidecar);
        self
    }

    pub(crate) fn timeout(mut self, timeout: &str) -> Self {
        timeout.clone_into(&mut self.timeout);
        self
    }

    pub(crate) fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    pub(crate) fn wants_injector(&self) -> bool {
        self.injected.iter().any(|sidecars| !sidecars.is_empty())
    }

    pub(crate) fn manifest(&self, images: &Images) -> Value {
        let with_image = |mut container: Value| {
            if container.get("image").is_none() {
                container["image"] = json!(images.busybox);
            }
            container
        };
        let mut annotations = self.annotations.clone();
        for (order, sidecars) in [Order::BeforeOurs, Order::AfterOurs].into_iter().zip(&self.injected) {
            if !sidecars.is_empty() {
                let containers: Vec<Value> =
                    sidecars.iter().map(|sidecar| with_image(sidecar.container.clone())).collect();
                annotations.insert(format!("{ANNOTATION}-{}", order.word()), json!(json!(containers).to_string()));
            }
        }
        let declared: Vec<Value> = self.sidecars.iter().map(|sidecar| with_image(sidecar.container.clone())).collect();
        json!({
            "apiVersion": "tekton.dev/v1",
            "kind": "TaskRun",
            "metadata": { "name": self.name, "labels": self.labels, "annotations": annotations },
            "spec": {
                "timeout": self.timeout,
                "retries": self.retries,
                "taskSpec": {
                    "steps": self.steps.iter().cloned().map(with_image).collect::<Vec<Value>>(),
                    "sidecars": declared,
                    "results": self.results.iter().map(|name| json!({ "name": name })).collect::<Vec<Value>>(),
                },
            },
        })
    }
}

/// A container that is no step.
#[derive(Clone)]
pub(crate) struct Sidecar {
    container: Value,
}

impl Sidecar {
    /// A web server on that port that answers, and is ready, after so many seconds; it exits 0 on SIGTERM.
    pub(crate) fn server(name: &str, port: u16, after_seconds: u32) -> Self {
        Self::script(name, &format!("trap 'exit 0' TERM; {}; sleep 86400 & wait", serve(name, port, after_seconds)))
            .probed(port)
    }

    /// The same, but it ignores SIGTERM, and must be killed.
    pub(crate) fn deaf_server(name: &str, port: u16, after_seconds: u32) -> Self {
        let serve = serve(name, port, after_seconds);
        Self::script(name, &format!("trap '' TERM; {serve}; while :; do sleep 1; done")).probed(port)
    }

    /// Any shell script, without a probe: ready as soon as it runs.
    pub(crate) fn script(name: &str, script: &str) -> Self {
        Self { container: json!({ "name": name, "command": ["sh", "-c", script] }) }
    }

    /// Runs on, and exits 0 on SIGTERM.
    pub(crate) fn idle(name: &str) -> Self {
        Self::script(name, "trap 'exit 0' TERM; sleep 86400 & wait")
    }

    /// Runs on, never ready.
    pub(crate) fn never_ready(name: &str) -> Self {
        Self::idle(name).with(json!({ "readinessProbe": { "exec": { "command": ["false"] }, "periodSeconds": 1 } }))
    }

    /// More fields of the container, or others.
    pub(crate) fn with(mut self, fields: Value) -> Self {
        merge(&mut self.container, fields);
        self
    }

    fn probed(self, port: u16) -> Self {
        self.with(json!({
            "readinessProbe": { "httpGet": { "path": "/", "port": port }, "periodSeconds": 1, "failureThreshold": 1 }
        }))
    }
}

/// What a step says to be sure that a server answers; it exits 1 if not. (No `-T`: Debian's static busybox crashes on it.)
pub(crate) fn ask(port: u16) -> String {
    format!("wget -q -O - http://127.0.0.1:{port}/ || exit 1")
}

fn serve(name: &str, port: u16, after_seconds: u32) -> String {
    format!(
        "echo {name} starts; sleep {after_seconds}; mkdir -p /tmp/www-{port}; echo hello >/tmp/www-{port}/index.html; \
         httpd -p {port} -h /tmp/www-{port}; echo {name} serves"
    )
}

fn merge(into: &mut Value, fields: Value) {
    if let (Value::Object(into), Value::Object(fields)) = (into, fields) {
        into.extend(fields);
    }
}
