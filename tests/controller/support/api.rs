use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response, StatusCode};
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::{StreamExt, stream};
use http_body_util::BodyExt;
use serde_json::{Value, json};

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

impl Call {
    /// It would change something, on a real server.
    pub(crate) fn writes(&self) -> bool {
        self.method != "GET"
    }
}

/// Where an object is, whatever the version that it is asked for in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    group: String,
    plural: String,
    namespace: String,
    name: String,
}

struct Event {
    version: u64,
    place: Place,
    before: Option<Value>,
    after: Option<Value>,
}

struct Watcher {
    select: Select,
    events: UnboundedSender<Result<Bytes, Infallible>>,
}

#[derive(Clone)]
struct Select {
    group: String,
    plural: String,
    namespace: Option<String>,
    labels: String,
    fields: String,
}

/// What somebody else does just before a request of this kind is answered.
struct Meanwhile {
    method: &'static str,
    path: String,
    change: Box<dyn FnOnce(&FakeApi) + Send>,
}

struct Fault {
    method: &'static str,
    path: String,
    times: usize,
    status: Value,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<Place, Value>,
    log: Vec<Event>,
    watchers: Vec<Watcher>,
    calls: Vec<Call>,
    faults: Vec<Fault>,
    meanwhile: Vec<Meanwhile>,
    tekton: BTreeSet<String>,
    held: HashMap<String, Vec<Event>>,
    minor: u32,
}

/// The API server.
#[derive(Clone)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

impl FakeApi {
    /// Kubernetes 1.37, with Tekton's `v1` and `v1beta1`.
    pub(crate) fn new() -> Self {
        let tekton = ["v1", "v1beta1"].map(str::to_owned).into();
        Self(Arc::new(Mutex::new(State { version: 100, minor: 37, tekton, ..State::default() })))
    }

    pub(crate) fn client(&self) -> kube::Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let this = this.clone();
            async move { Ok::<_, Infallible>(this.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    pub(crate) fn minor_version(&self, minor: u32) {
        self.state().minor = minor;
    }

    /// Which versions of Tekton's API are served from now on. Watches on others end.
    pub(crate) fn serve_tekton(&self, versions: &[&str]) {
        let mut state = self.state();
        state.tekton = versions.iter().map(|version| (*version).to_owned()).collect();
        state.watchers.retain(|watcher| watcher.select.group != "tekton.dev");
    }

    /// Every watch on this resource breaks off.
    pub(crate) fn cut(&self, plural: &str) {
        self.state().watchers.retain(|watcher| watcher.select.plural != plural);
    }

    /// As [`Self::serve_tekton`], but nobody tells the watches.
    pub(crate) fn serve_tekton_silently(&self, versions: &[&str]) {
        self.state().tekton = versions.iter().map(|version| (*version).to_owned()).collect();
    }

    /// Creates or replaces an object, as its owner would.
    pub(crate) fn put(&self, object: Value) {
        let place = place_of(&object);
        self.state().store(place, Some(object));
    }

    /// Changes an object, as its owner would.
    pub(crate) fn change(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut state = self.state();
        let (place, mut object) = state.find(plural, name).unwrap_or_else(|| panic!("no {plural} {name}"));
        change(&mut object);
        state.store(place, Some(object));
    }

    pub(crate) fn remove(&self, plural: &str, name: &str) {
        let mut state = self.state();
        let (place, _) = state.find(plural, name).unwrap_or_else(|| panic!("no {plural} {name}"));
        state.store(place, None);
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.state().find(plural, name).map(|(_, object)| object)
    }

    /// Watches on this resource show nothing new until [`Self::show`].
    pub(crate) fn hold_back(&self, plural: &str) {
        self.state().held.insert(plural.to_owned(), Vec::new());
    }

    pub(crate) fn show(&self, plural: &str) {
        let mut state = self.state();
        for event in state.held.remove(plural).unwrap_or_default() {
            state.deliver(event);
        }
    }

    /// The next requests of this kind fail.
    pub(crate) fn fail(&self, method: &'static str, path: &str, code: u16, reason: &str, message: &str, times: usize) {
        let status = status(code, reason, message, json!({}));
        self.state().faults.push(Fault { method, path: path.to_owned(), times, status });
    }

    /// Somebody else does this just before the next request of this kind is answered.
    pub(crate) fn meanwhile(&self, method: &'static str, path: &str, change: impl FnOnce(&Self) + Send + 'static) {
        self.state().meanwhile.push(Meanwhile { method, path: path.to_owned(), change: Box::new(change) });
    }

    /// Nothing fails any more.
    pub(crate) fn recover(&self) {
        self.state().faults.clear();
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    pub(crate) fn forget_calls(&self) {
        self.state().calls.clear();
    }

    /// Everything that was to be written, but for Events and Leases.
    pub(crate) fn writes(&self) -> Vec<Call> {
        let about = |call: &Call| !call.path.contains("/events") && !call.path.contains("/leases");
        self.calls().into_iter().filter(|call| call.writes() && about(call)).collect()
    }

    /// The Events there are: reason and note.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        let state = self.state();
        let events = state.objects.iter().filter(|(place, _)| place.plural == "events");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        events.map(|(_, event)| (text(&event["reason"]), text(&event["note"]))).collect()
    }

    pub(crate) fn has_event(&self, reason: &str) -> bool {
        self.events().iter().any(|(has, _)| has == reason)
    }

    /// Waits until something holds. Time is paused in tests, so this takes none.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..60_000 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never came to be: {what}\nevents: {:#?}\ncalls: {:#?}", self.events(), self.calls());
    }

    async fn answer(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let call = Call {
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        };
        let kind = parts.headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        let meanwhile = {
            let mut state = self.state();
            let mine = |one: &Meanwhile| one.method == call.method && call.path.contains(&one.path);
            state.meanwhile.iter().position(mine).map(|at| state.meanwhile.remove(at))
        };
        if let Some(meanwhile) = meanwhile {
            (meanwhile.change)(self);
        }
        let mut state = self.state();
        state.calls.push(call.clone());
        let fault = state
            .faults
            .iter_mut()
            .find(|fault| fault.times > 0 && fault.method == call.method && call.path.contains(&fault.path));
        if let Some(fault) = fault {
            fault.times -= 1;
            return reply(fault.status.clone());
        }
        state.answer(&call, &kind)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    fn find(&self, plural: &str, name: &str) -> Option<(Place, Value)> {
        let mut found = self.objects.iter().filter(|(place, _)| place.plural == plural && place.name == name);
        found.next().map(|(place, object)| (place.clone(), object.clone()))
    }

    fn store(&mut self, place: Place, object: Option<Value>) -> Value {
        self.version += 1;
        let version = self.version;
        let stamp = |mut object: Value| {
            object["metadata"]["resourceVersion"] = version.to_string().into();
            object
        };
        let before = self.objects.get(&place).cloned();
        let after = object.map(stamp);
        match &after {
            Some(object) => self.objects.insert(place.clone(), object.clone()),
            None => self.objects.remove(&place),
        };
        let gone = before.clone().map(stamp).unwrap_or_default();
        let event = Event { version, place: place.clone(), before, after: after.clone() };
        match self.held.get_mut(&place.plural) {
            Some(held) => held.push(event),
            None => self.deliver(event),
        }
        after.unwrap_or(gone)
    }

    fn deliver(&mut self, event: Event) {
        self.watchers.retain(|watcher| match watcher.select.line(&event) {
            Some(line) => watcher.events.unbounded_send(Ok(line)).is_ok(),
            None => !watcher.events.is_closed(),
        });
        self.log.push(event);
    }

    fn answer(&mut self, call: &Call, kind: &str) -> Response<Body> {
        let words: Vec<&str> = call.path.trim_matches('/').split('/').collect();
        if call.path == "/version" {
            return reply(json!({ "major": "1", "minor": self.minor.to_string(), "gitVersion": "", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "" }));
        }
        let (group, version, rest) = match words.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            other => panic!("a path that no test expects: {other:?}"),
        };
        if group == "tekton.dev" && !self.tekton.contains(version) {
            return Response::builder().status(404).body("404 page not found\n".into()).unwrap();
        }
        if rest.is_empty() {
            let resource =
                json!({ "name": "taskruns", "kind": "TaskRun", "namespaced": true, "verbs": [], "singularName": "" });
            return reply(
                json!({ "kind": "APIResourceList", "groupVersion": format!("{group}/{version}"), "resources": [resource] }),
            );
        }
        let (namespace, plural, name) = match rest {
            ["namespaces", namespace, plural] => (Some(*namespace), *plural, None),
            ["namespaces", namespace, plural, name] => (Some(*namespace), *plural, Some(*name)),
            [plural] => (None, *plural, None),
            [plural, name] => (None, *plural, Some(*name)),
            other => panic!("a path that no test expects: {other:?}"),
        };
        let place = |name: &str| Place {
            group: group.to_owned(),
            plural: plural.to_owned(),
            namespace: namespace.unwrap_or_default().to_owned(),
            name: name.to_owned(),
        };
        match (call.method.as_str(), name) {
            ("GET", None) => self.list(call, group, plural, namespace),
            ("GET", Some(name)) => match self.objects.get(&place(name)) {
                Some(object) => reply(object.clone()),
                None => not_found(plural, name),
            },
            ("POST", None) => {
                let mut object = call.body.clone();
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                if self.objects.contains_key(&place(&name)) {
                    return reply(status(
                        409,
                        "AlreadyExists",
                        &format!("{plural} \"{name}\" already exists"),
                        json!({}),
                    ));
                }
                object["metadata"]["namespace"] = namespace.unwrap_or_default().into();
                reply(self.store(place(&name), Some(object)))
            }
            ("PATCH", Some(name)) => {
                let Some(mut object) = self.objects.get(&place(name)).cloned() else { return not_found(plural, name) };
                if kind == "application/json-patch+json" {
                    let patch: json_patch::Patch = serde_json::from_value(call.body.clone()).unwrap();
                    if json_patch::patch(&mut object, &patch).is_err() {
                        let words = "the server rejected our request due to an error in our request";
                        return reply(status(422, "Invalid", words, json!({})));
                    }
                } else {
                    let version = &call.body["metadata"]["resourceVersion"];
                    if version.is_string() && *version != object["metadata"]["resourceVersion"] {
                        return reply(status(409, "Conflict", "the object has been modified", json!({})));
                    }
                    json_patch::merge(&mut object, &call.body);
                }
                reply(self.store(place(name), Some(object)))
            }
            ("DELETE", Some(name)) => {
                if !self.objects.contains_key(&place(name)) {
                    return not_found(plural, name);
                }
                self.store(place(name), None);
                reply(json!({ "kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200 }))
            }
            other => panic!("a request that no test expects: {other:?} {}", call.path),
        }
    }

    fn list(&mut self, call: &Call, group: &str, plural: &str, namespace: Option<&str>) -> Response<Body> {
        let query: HashMap<String, String> = query(&call.query);
        let text = |key: &str| query.get(key).cloned().unwrap_or_default();
        let select = Select {
            group: group.to_owned(),
            plural: plural.to_owned(),
            namespace: namespace.map(str::to_owned),
            labels: text("labelSelector"),
            fields: text("fieldSelector"),
        };
        let found: Vec<Value> = (self.objects.iter())
            .filter(|(place, object)| select.covers(place) && select.takes(object))
            .map(|(_, object)| object.clone())
            .collect();
        if text("watch") != "true" {
            return reply(json!({
                "kind": "List", "apiVersion": "v1",
                "metadata": { "resourceVersion": self.version.to_string() },
                "items": found,
            }));
        }
        let mut lines = Vec::new();
        if text("sendInitialEvents") == "true" {
            if self.minor < 34 {
                return reply(status(422, "Invalid", "sendInitialEvents: Forbidden", json!({})));
            }
            lines.extend(found.iter().map(|object| line("ADDED", object)));
            let metadata = json!({ "resourceVersion": self.version.to_string(), "annotations": { "k8s.io/initial-events-end": "true" } });
            lines.push(line("BOOKMARK", &json!({ "kind": "Bookmark", "apiVersion": "v1", "metadata": metadata })));
        } else {
            let since: u64 = text("resourceVersion").parse().unwrap_or(0);
            lines.extend(self.log.iter().filter(|event| event.version > since).filter_map(|event| select.line(event)));
        }
        let (events, later) = unbounded();
        self.watchers.push(Watcher { select, events });
        Response::new(Body::from_stream(stream::iter(lines.into_iter().map(Ok)).chain(later)))
    }
}

impl Select {
    fn covers(&self, place: &Place) -> bool {
        place.group == self.group
            && place.plural == self.plural
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == place.namespace)
    }

    fn takes(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let label = |part: &str| match part.split_once('=') {
            Some((key, value)) => labels[key] == value,
            None => labels.get(part).is_some(),
        };
        let field = |part: &str| {
            let (path, value, wanted) = match part.split_once("!=") {
                Some((path, value)) => (path, value, false),
                None => part.split_once('=').map(|(path, value)| (path, value, true)).unwrap(),
            };
            let pointer = format!("/{}", path.replace('.', "/"));
            (object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default() == value) == wanted
        };
        let parts =
            |text: &str, takes: &dyn Fn(&str) -> bool| text.split(',').filter(|part| !part.is_empty()).all(takes);
        parts(&self.labels, &label) && parts(&self.fields, &field)
    }

    fn line(&self, event: &Event) -> Option<Bytes> {
        if !self.covers(&event.place) {
            return None;
        }
        let before = event.before.as_ref().filter(|object| self.takes(object));
        let after = event.after.as_ref().filter(|object| self.takes(object));
        match (before, after) {
            (None, None) => None,
            (None, Some(object)) => Some(line("ADDED", object)),
            (Some(_), Some(object)) => Some(line("MODIFIED", object)),
            (Some(object), None) => {
                let mut object = object.clone();
                object["metadata"]["resourceVersion"] = event.version.to_string().into();
                Some(line("DELETED", &object))
            }
        }
    }
}

fn place_of(object: &Value) -> Place {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let version = text(&object["apiVersion"]);
    let kind = text(&object["kind"]).to_lowercase();
    Place {
        group: version.split_once('/').map(|(group, _)| group.to_owned()).unwrap_or_default(),
        plural: format!("{kind}s"),
        namespace: text(&object["metadata"]["namespace"]),
        name: text(&object["metadata"]["name"]),
    }
}

fn query(text: &str) -> HashMap<String, String> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), unescape(value))).collect()
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let code = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&code).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

fn line(kind: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({ "type": kind, "object": object })).into()
}

fn status(code: u16, reason: &str, message: &str, details: Value) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details })
}

fn not_found(plural: &str, name: &str) -> Response<Body> {
    let details = json!({ "name": name, "kind": plural });
    reply(status(404, "NotFound", &format!("{plural} \"{name}\" not found"), details))
}

fn reply(body: Value) -> Response<Body> {
    let code = match body["kind"].as_str() {
        Some("Status") => body["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(200),
        _ => 200,
    };
    Response::builder()
        .status(StatusCode::from_u16(code).unwrap())
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap()
}
