//! The chart, as `helm template` renders it.
//!
//! helm is `$HELM`, or the one in `PATH`; with neither, these tests say so and do nothing. `$ISTIO_CHARTS` is the folder
//! `manifests/charts` of Istio's source (`tests/cluster/cluster istio-charts` prints one); without it, the test that
//! compares selectors with Istio's own says so.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may panic, and so may what it calls")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use kickstand::pod::contract::Reason;
use kickstand::pod::known::Known;
use rstest::rstest;
use serde_json::{Value, json};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/kickstand");
const NAMESPACE: &str = "kickstand-system";
/// Called after the injectors, and before them.
const CONFIGURATIONS: [&str; 2] = [LATE, EARLY];
const LATE: &str = "zz-kickstand";
const EARLY: &str = "0-kickstand";
/// Everything of `helm test`, and the namespace that it makes.
const TEST: &str = "kickstand-helm-test";

fn helm() -> Option<&'static str> {
    static HELM: OnceLock<Option<String>> = OnceLock::new();
    HELM.get_or_init(|| {
        #[expect(clippy::disallowed_methods, reason = "a test has no configuration but this")]
        let named = std::env::var("HELM").ok().filter(|path| !path.is_empty());
        let works = |helm: &str| Command::new(helm).arg("version").output().is_ok_and(|output| output.status.success());
        match named {
            Some(helm) => {
                assert!(works(&helm), "HELM={helm} does not run. Next: name a helm binary, or unset HELM");
                Some(helm)
            }
            None => Some("helm".to_owned()).filter(|helm| works(helm)),
        }
    })
    .as_deref()
}

/// `let helm = helm_or_skip!();`: a green run without helm must at least say that it has tested nothing.
macro_rules! helm_or_skip {
    () => {
        match helm() {
            Some(helm) => helm,
            None => {
                eprintln!("skipped: there is no helm. Next: HELM=/path/to/helm cargo test --test chart");
                return;
            }
        }
    };
}

/// Istio's charts; none if nobody has said where they are.
fn istio_charts() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "a test has no configuration but this")]
    let named = std::env::var("ISTIO_CHARTS").ok().filter(|path| !path.is_empty())?;
    let charts = PathBuf::from(named);
    let there = charts.join("istio-control/istio-discovery/Chart.yaml").is_file();
    assert!(
        there,
        "ISTIO_CHARTS={} holds no charts of Istio's. Next: name its manifests/charts, or unset it",
        charts.display()
    );
    Some(charts)
}

fn template(helm: &str, arguments: &[&str]) -> Output {
    Command::new(helm)
        .args(["template", "kickstand", CHART, "--namespace", NAMESPACE])
        .args(arguments)
        .output()
        .unwrap()
}

fn text(helm: &str, arguments: &[&str]) -> String {
    let output = template(helm, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(helm: &str, arguments: &[&str]) -> String {
    let output = template(helm, arguments);
    assert!(!output.status.success(), "{arguments:?} should have been refused");
    String::from_utf8(output.stderr).unwrap()
}

struct Rendered(Vec<Value>);

fn render(helm: &str, arguments: &[&str]) -> Rendered {
    let all: Vec<Value> = serde_saphyr::from_multiple(&text(helm, arguments)).unwrap();
    Rendered(all.into_iter().filter(|object| !object.is_null()).collect())
}

impl Rendered {
    fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    fn one(&self, kind: &str, name: &str) -> &Value {
        self.all(kind)
            .find(|object| object["metadata"]["name"] == name)
            .unwrap_or_else(|| panic!("there is no {kind} {name}"))
    }

    /// The same, where several bear that name.
    fn one_in(&self, kind: &str, namespace: Option<&str>, name: &str) -> &Value {
        let is_it = |object: &&Value| {
            let metadata = &object["metadata"];
            metadata["name"] == name && metadata.get("namespace").and_then(Value::as_str) == namespace
        };
        self.all(kind).find(is_it).unwrap_or_else(|| panic!("there is no {kind} {name} in {namespace:?}"))
    }

    /// `kind/name` and the pod's template, of all that run pods.
    fn pods(&self) -> Vec<(String, &Value)> {
        let templates = ["Deployment", "Job"].into_iter().flat_map(|kind| self.all(kind));
        let templates = templates.map(|object| (id(object), &object["spec"]["template"]));
        templates.chain(self.all("Pod").map(|pod| (id(pod), pod))).collect()
    }

    fn entries(&self, configuration: &str) -> &[Value] {
        self.one("MutatingWebhookConfiguration", configuration)["webhooks"].as_array().unwrap()
    }

    fn arguments(&self, kind: &str, name: &str) -> Vec<&str> {
        let object = self.one(kind, name);
        let pod = if kind == "Pod" { object } else { &object["spec"]["template"] };
        strings(&pod["spec"]["containers"][0]["args"])
    }
}

fn id(object: &Value) -> String {
    format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
}

fn strings(array: &Value) -> Vec<&str> {
    array.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}

// What is rendered at all.

#[test]
fn two_renderings_are_the_same_to_the_byte() {
    let helm = helm_or_skip!();
    assert_eq!(text(helm, &[]), text(helm, &[]));
}

#[test]
fn templates_ask_neither_the_cluster_nor_the_dice_nor_the_clock() {
    let words =
        ["lookup", "rand", "genCA", "genSelf", "genSigned", "genPrivate", "uuidv4", "now", "shuffle", "htpasswd"];
    let files = ["templates", "templates/tests"].map(|folder| fs::read_dir(Path::new(CHART).join(folder)).unwrap());
    for file in files.into_iter().flatten() {
        let path = file.unwrap().path();
        if path.is_dir() || path.ends_with("NOTES.txt") {
            continue;
        }
        let template = fs::read_to_string(&path).unwrap();
        let actions = template.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
        for action in actions.filter(|action| !action.trim_start_matches(['-', ' ']).starts_with("/*")) {
            let used = action.split(|c: char| !c.is_alphanumeric()).find(|word| words.contains(word));
            assert_eq!(used, None, "{} renders differently each time: {action}", path.display());
        }
    }
}

#[test]
fn everything_is_where_helm_was_told_and_has_one_owner() {
    let helm = helm_or_skip!();
    let cluster = ["ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "Namespace"];
    let mut seen = BTreeSet::new();
    for object in &render(helm, &["--set", "metrics.podMonitor.enabled=true,networkPolicy.enabled=true"]).0 {
        let namespaced = !cluster.contains(&object["kind"].as_str().unwrap());
        let namespace = &object["metadata"]["namespace"];
        let is_right_in_the_test = *namespace == TEST && object["kind"].as_str().unwrap().starts_with("Role");
        assert!(
            is_right_in_the_test || *namespace == if namespaced { json!(NAMESPACE) } else { Value::Null },
            "{}",
            id(object)
        );
        assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/instance"], "kickstand", "{}", id(object));
        assert!(seen.insert((namespace.to_string(), id(object))), "{} is there twice", id(object));
    }
}

#[test]
fn what_the_controller_fills_in_is_never_rendered() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &[]);
    let secrets: Vec<&Value> = rendered.all("Secret").collect();
    assert_eq!(
        secrets.iter().map(|secret| id(secret)).collect::<Vec<_>>(),
        ["Secret/kickstand-ca", "Secret/kickstand-webhook-tls"]
    );
    for secret in secrets {
        assert_eq!(secret["type"], "Opaque");
        assert!(secret.get("data").is_none() && secret.get("stringData").is_none());
    }
    for entry in CONFIGURATIONS.iter().flat_map(|name| rendered.entries(name)) {
        assert!(entry["clientConfig"].get("caBundle").is_none());
    }
}

#[test]
fn the_notes_name_events_that_there_are() {
    let notes = fs::read_to_string(Path::new(CHART).join("templates/NOTES.txt")).unwrap();
    let named: BTreeSet<&str> =
        notes.split("reason=").skip(1).map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap()).collect();
    let known: BTreeSet<&str> = Reason::ALL.into_iter().map(Reason::as_str).collect();
    assert!(!named.is_empty() && named.is_subset(&known), "{named:?}");
}

#[test]
fn the_notes_say_what_to_do_with_these_values() {
    let helm = helm_or_skip!();
    for mode in MODES {
        let output = Command::new(helm)
            .args(["install", "kickstand", CHART, "--namespace", NAMESPACE, "--dry-run=client", "--set", mode])
            .args(["--set", "watchNamespaces={team},nopImage.registry=registry.example"])
            .env("KUBECONFIG", "/dev/null")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let all = String::from_utf8(output.stdout).unwrap();
        let notes = all.split("\nNOTES:\n").nth(1).unwrap();
        for said in [
            "kubectl delete mutatingwebhookconfiguration zz-kickstand 0-kickstand\n",
            "\n  registry.example/kickstand-dev/kickstand-nop:0.1.0\n",
            "looks after the TaskRuns of team:",
            "kubectl get namespaces -L kickstand.dev/inject",
            "\n  helm test kickstand -n kickstand-system --logs\n",
        ] {
            assert!(notes.contains(said), "{mode}: no \"{said}\" in {notes}");
        }
        assert_eq!(notes.contains("-L istio-injection"), mode.starts_with("namespaces=istio"), "{notes}");
    }
}

// Whom the webhook is called for.

type Labels = BTreeMap<&'static str, &'static str>;

/// As the API server evaluates a label selector.
fn selects(selector: &Value, labels: &Labels) -> bool {
    assert!(selector.get("matchLabels").is_none(), "not known to this test");
    selector["matchExpressions"].as_array().unwrap().iter().all(|expression| {
        let value = labels.get(expression["key"].as_str().unwrap());
        let listed =
            || value.is_some_and(|value| expression["values"].as_array().unwrap().iter().any(|it| it == value));
        match expression["operator"].as_str().unwrap() {
            "In" => listed(),
            "NotIn" => !listed(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => panic!("no such operator: {other}"),
        }
    })
}

fn matching<'a>(entries: &'a [Value], namespace: &Labels, pod: &Labels) -> Vec<&'a str> {
    entries
        .iter()
        .filter(|entry| selects(&entry["namespaceSelector"], namespace) && selects(&entry["objectSelector"], pod))
        .map(|entry| entry["name"].as_str().unwrap())
        .collect()
}

/// Every combination of these labels, each absent or with one of its values.
fn combinations(table: &[(&'static str, &[&'static str])]) -> Vec<Labels> {
    table.iter().fold(vec![Labels::new()], |so_far, (key, values)| {
        so_far
            .iter()
            .flat_map(|labels| {
                std::iter::once(labels.clone()).chain(values.iter().map(|value| {
                    let mut labels = labels.clone();
                    labels.insert(key, value);
                    labels
                }))
            })
            .collect()
    })
}

fn namespaces() -> Vec<Labels> {
    let mut all = Vec::new();
    for name in ["team", "other", "kube-public", "kube-system", NAMESPACE] {
        for mut labels in combinations(&[
            ("kickstand.dev/inject", &["true", "false", "yes"]),
            ("istio-injection", &["enabled", "disabled", ""]),
            ("istio.io/rev", &["default", "canary"]),
        ]) {
            labels.insert("kubernetes.io/metadata.name", name);
            all.push(labels);
        }
    }
    all
}

fn pods() -> Vec<Labels> {
    combinations(&[
        ("tekton.dev/taskRun", &["build-1"]),
        ("kickstand.dev/inject", &["true", "false"]),
        ("sidecar.istio.io/inject", &["true", "false", ""]),
        ("istio.io/rev", &["canary"]),
    ])
}

/// Istio's own, wherever and whoever asks (`injectRequired` of its pkg/kube/inject).
const ISTIO_NEVER: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "local-path-storage"];

/// The revision of Istio that would inject here: its five webhook entries, read as one rule.
fn revision<'a>(namespace: &'a Labels, pod: &'a Labels, by_default: bool) -> Option<&'a str> {
    let (asked, of_pod) = (pod.get("sidecar.istio.io/inject"), pod.get("istio.io/rev"));
    if asked == Some(&"false") || ISTIO_NEVER.contains(&namespace["kubernetes.io/metadata.name"]) {
        return None;
    }
    match (namespace.get("istio-injection"), namespace.get("istio.io/rev")) {
        (Some(&"enabled"), _) => Some("default"),
        (Some(_), _) => None,
        (None, Some(revision)) => Some(revision),
        (None, None) if asked == Some(&"true") || (by_default && asked.is_none()) => {
            Some(of_pod.copied().unwrap_or("default"))
        }
        (None, None) => of_pod.copied(),
    }
}

const MODES: [&str; 4] = [
    "namespaces=istio",
    "namespaces=istio,istio.enableNamespacesByDefault=true",
    "namespaces=labelled",
    "namespaces=all,istio.enableNamespacesByDefault=true",
];

#[test]
fn each_pod_that_is_covered_matches_one_entry_and_no_other_pod_any() {
    let helm = helm_or_skip!();
    for (mode, watched) in MODES.into_iter().flat_map(|mode| [(mode, &[][..]), (mode, &["team", "third"][..])]) {
        let limit = format!("watchNamespaces={{{}}}", watched.join(","));
        let rendered =
            render(helm, &["--set", mode, "--set", if watched.is_empty() { "watchNamespaces=null" } else { &limit }]);
        let mut covered = 0;
        for namespace in namespaces() {
            for pod in pods() {
                let name = namespace["kubernetes.io/metadata.name"];
                let inject = namespace.get("kickstand.dev/inject").copied();
                let expected = pod.contains_key("tekton.dev/taskRun")
                    && pod.get("kickstand.dev/inject") != Some(&"false")
                    && !["kube-system", NAMESPACE].contains(&name)
                    && (watched.is_empty() || watched.contains(&name))
                    && inject != Some("false")
                    && match mode.split(['=', ',']).nth(1).unwrap() {
                        "all" => true,
                        "labelled" => inject == Some("true"),
                        _ => inject == Some("true") || revision(&namespace, &pod, mode.contains("ByDefault")).is_some(),
                    };
                let entries = matching(rendered.entries(LATE), &namespace, &pod);
                assert_eq!(entries.len(), usize::from(expected), "{mode}: {namespace:?} {pod:?}: {entries:?}");
                covered += usize::from(expected);
            }
        }
        assert!(covered > 0);
    }
}

/// The API server calls a webhook again only if the very entry that matched first matches still.
#[test]
fn labels_that_injection_adds_take_no_pod_from_its_entry() {
    let helm = helm_or_skip!();
    for mode in MODES {
        let rendered = render(helm, &["--set", mode]);
        for namespace in namespaces() {
            for pod in pods() {
                let mut injected = pod.clone();
                injected.entry("istio.io/rev").or_insert("default");
                for label in
                    ["security.istio.io/tlsMode", "service.istio.io/canonical-name", "linkerd.io/control-plane-ns"]
                {
                    injected.insert(label, "istio");
                }
                let before = matching(rendered.entries(LATE), &namespace, &pod);
                let after = matching(rendered.entries(LATE), &namespace, &injected);
                assert!(before.is_empty() || before == after, "{namespace:?} {pod:?}: {before:?}, then {after:?}");
            }
        }
    }
}

/// Istio as somebody has installed it: what renders its webhooks, and by which names its revisions are called.
struct Istio {
    installs: &'static [(&'static str, &'static [&'static str])],
    revisions: &'static [&'static str],
    by_default: bool,
}

const ISTIOD: &str = "istio-control/istio-discovery";

#[rstest]
#[case::default_and_canary(Istio {
    installs: &[(ISTIOD, &[]), (ISTIOD, &["revision=canary"])],
    revisions: &["default", "canary"],
    by_default: false,
})]
#[case::namespaces_by_default(Istio {
    installs: &[
        (ISTIOD, &["sidecarInjectorWebhook.enableNamespacesByDefault=true"]),
        (ISTIOD, &["revision=canary"]),
    ],
    revisions: &["default", "canary"],
    by_default: true,
})]
#[case::a_tag(Istio {
    installs: &[(ISTIOD, &[]), (ISTIOD, &["revision=canary", "revisionTags={prod}"])],
    revisions: &["default", "canary", "prod"],
    by_default: false,
})]
#[case::no_default_revision(Istio {
    installs: &[(ISTIOD, &["revision=canary", "revisionTags={prod}"])],
    revisions: &["canary", "prod"],
    by_default: false,
})]
#[case::a_tag_as_the_default(Istio {
    installs: &[(ISTIOD, &["revision=canary", "revisionTags={prod,default}"])],
    revisions: &["default", "canary", "prod"],
    by_default: false,
})]
#[case::a_tag_as_the_default_of_namespaces(Istio {
    installs: &[(
        ISTIOD,
        &["revision=canary", "revisionTags={default}", "sidecarInjectorWebhook.enableNamespacesByDefault=true"],
    )],
    revisions: &["default", "canary"],
    by_default: true,
})]
#[case::the_chart_that_makes_a_default(Istio {
    installs: &[(ISTIOD, &["revision=canary"]), ("default", &["revision=canary"])],
    revisions: &["default", "canary"],
    by_default: false,
})]
fn whom_istio_injects_is_whom_we_are_called_for(#[case] istio: Istio) {
    let helm = helm_or_skip!();
    let Some(charts) = istio_charts() else {
        eprintln!(
            "skipped: nobody says where Istio's charts are. \
             Next: ISTIO_CHARTS=\"$(tests/cluster/cluster istio-charts)\" cargo test --test chart"
        );
        return;
    };
    let theirs: Vec<Value> = istio
        .installs
        .iter()
        .flat_map(|(chart, values)| {
            let mut command = Command::new(helm);
            command.args(["template", "istiod"]).arg(charts.join(chart)).args(["--namespace", "istio-system"]);
            let output = command.args(values.iter().flat_map(|value| ["--set", *value])).output().unwrap();
            assert!(output.status.success(), "{chart}: {}", String::from_utf8_lossy(&output.stderr));
            let all: Vec<Value> = serde_saphyr::from_multiple(std::str::from_utf8(&output.stdout).unwrap()).unwrap();
            let webhooks: Vec<Value> = all
                .into_iter()
                .filter(|object| object["kind"] == "MutatingWebhookConfiguration")
                .flat_map(|object| object["webhooks"].as_array().unwrap().clone())
                .collect();
            assert!(webhooks.len() >= 2, "{chart}");
            webhooks
        })
        .collect();
    let ours = render(helm, &["--set", &format!("istio.enableNamespacesByDefault={}", istio.by_default)]);

    let revisions: &[&str] = &["default", "canary", "prod", "unknown"];
    let of_namespaces =
        combinations(&[("istio-injection", &["enabled", "disabled", "yes"]), ("istio.io/rev", revisions)]);
    let of_pods = combinations(&[("sidecar.istio.io/inject", &["true", "false", "yes"]), ("istio.io/rev", revisions)]);
    let (mut looked_at, mut injected) = (0, 0);
    for (name, namespace) in
        ["team", "kube-public"].iter().flat_map(|name| of_namespaces.iter().map(move |it| (name, it)))
    {
        for pod in &of_pods {
            let (mut namespace, mut pod) = (namespace.clone(), pod.clone());
            namespace.insert("kubernetes.io/metadata.name", name);
            pod.insert("tekton.dev/taskRun", "build-1");
            let injects = !matching(&theirs, &namespace, &pod).is_empty() && !ISTIO_NEVER.contains(name);
            let entries = matching(ours.entries(LATE), &namespace, &pod);
            assert!(entries.len() <= 1, "{namespace:?} {pod:?}: {entries:?}");
            let would = revision(&namespace, &pod, istio.by_default);
            if injects {
                assert_eq!(entries.len(), 1, "missed: {namespace:?} {pod:?}");
            } else if !entries.is_empty() {
                let revision = would.unwrap();
                assert!(!istio.revisions.contains(&revision), "too many: {namespace:?} {pod:?}: {entries:?}");
            }
            // The rule that the other tests go by.
            assert_eq!(injects, would.is_some_and(|it| istio.revisions.contains(&it)), "{namespace:?} {pod:?}");
            looked_at += 1;
            injected += usize::from(injects);
        }
    }
    assert!(looked_at == 800 && injected >= 36, "{injected} of {looked_at}");
}

#[test]
fn the_early_call_is_for_the_same_pods_as_the_late_one() {
    let helm = helm_or_skip!();
    let selectors = |rendered: &Rendered, name: &str| -> Vec<(String, Value, Value)> {
        let of = |entry: &Value| {
            let kind = entry["name"].as_str().unwrap().split('.').next().unwrap().to_owned();
            (kind, entry["namespaceSelector"].clone(), entry["objectSelector"].clone())
        };
        rendered.entries(name).iter().map(of).collect()
    };
    for mode in MODES {
        let rendered = render(helm, &["--set", mode, "--set", "watchNamespaces={a,b}"]);
        assert_eq!(selectors(&rendered, EARLY), selectors(&rendered, LATE), "{mode}");
    }
}

#[test]
fn the_webhooks_fail_open_and_soon() {
    let helm = helm_or_skip!();
    for mode in MODES {
        let rendered = render(helm, &["--set", mode]);
        let mut names = BTreeSet::new();
        for (configuration, path, reinvocation) in [(LATE, "/mutate", "IfNeeded"), (EARLY, "/ask", "Never")] {
            for entry in rendered.entries(configuration) {
                let name = entry["name"].as_str().unwrap();
                assert!(names.insert(name) && name.split('.').count() >= 3, "{name}");
                assert_eq!(entry["failurePolicy"], "Ignore");
                assert_eq!(entry["timeoutSeconds"], 5);
                assert_eq!(entry["reinvocationPolicy"], reinvocation);
                assert_eq!(entry["sideEffects"], "None");
                assert_eq!(entry["matchPolicy"], "Equivalent");
                assert_eq!(entry["admissionReviewVersions"], json!(["v1"]));
                assert_eq!(
                    entry["rules"],
                    json!([{ "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "scope": "Namespaced" }])
                );
                assert_eq!(
                    entry["clientConfig"],
                    json!({ "service": { "name": "kickstand-webhook", "namespace": NAMESPACE, "path": path, "port": 443 } })
                );
            }
        }
    }
}

#[test]
fn it_is_called_before_the_injectors_and_after_them() {
    for injector in [
        "istio-sidecar-injector",
        "istio-revision-tag-default",
        "linkerd-proxy-injector-webhook-config",
        "vault-agent-injector-cfg",
    ] {
        assert!(EARLY < injector && injector < LATE);
    }
}

#[test]
fn whoever_wants_no_native_sidecars_gets_no_early_call_and_no_right_to_it() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &["--set", "native.enabled=false"]);
    assert_eq!(
        rendered.all("MutatingWebhookConfiguration").map(id).collect::<Vec<_>>(),
        [format!("MutatingWebhookConfiguration/{LATE}")]
    );
    assert!(!rendered.0.iter().any(|object| object.to_string().contains(EARLY)));
    assert!(rendered.arguments("Deployment", "kickstand-webhook").contains(&"--native=off"));
    assert!(!grants(&rendered).iter().any(|line| line.contains("delete") && line.ends_with(" pods")));
}

// What runs.

#[test]
fn the_command_lines_are_these() {
    let helm = helm_or_skip!();
    let rendered = render(
        helm,
        &["--set", "watchNamespaces={a,b}", "--set", "certificates.managed=false,certificates.secretName=mine"],
    );
    insta::assert_snapshot!(rendered.arguments("Deployment", "kickstand-webhook").join("\n"), @r"
    webhook
    --listen-address=0.0.0.0:10250
    --admin-address=0.0.0.0:8080
    --tls-dir=/etc/kickstand/tls
    --namespace=$(POD_NAMESPACE)
    --lease-name=kickstand-controller
    --log-format=json
    --log-level=info
    ");
    insta::assert_snapshot!(rendered.arguments("Deployment", "kickstand-controller").join("\n"), @r"
    controller
    --admin-address=0.0.0.0:8080
    --namespace=$(POD_NAMESPACE)
    --identity=$(POD_NAME)
    --lease-name=kickstand-controller
    --nop-image=ghcr.io/kickstand-dev/kickstand-nop:0.1.0
    --tekton-nop-images=ghcr.io/tektoncd/pipeline/nop-,gcr.io/tekton-releases/github.com/tektoncd/pipeline/cmd/nop
    --watch-namespaces=a,b
    --webhook-configuration=zz-kickstand,0-kickstand
    --webhook-service=kickstand-webhook
    --ca-secret=kickstand-ca
    --tls-secret=mine
    --manage-certificates=false
    --log-format=json
    --log-level=info
    ");
    insta::assert_snapshot!(rendered.arguments("Job", "kickstand-uninstall").join("\n"), @r"
    release
    --delete-webhook
    --webhook-configuration=zz-kickstand,0-kickstand
    --watch-namespaces=a,b
    --deadline=60s
    --log-format=json
    --log-level=info
    ");
    insta::assert_snapshot!(rendered.arguments("Pod", TEST).join("\n"), @r"
    doctor
    --namespace=a
    --kickstand-namespace=kickstand-system
    --lease-name=kickstand-controller
    --image=ghcr.io/kickstand-dev/kickstand:0.1.0
    --wait=30s
    ");
}

#[test]
fn the_binary_knows_every_flag_that_the_chart_may_pass() {
    let helm = helm_or_skip!();
    let everything = [
        "--set",
        "watchNamespaces={a,b},certificates.managed=false,certificates.secretName=mine",
        "--set",
        "webhook.maxBodyBytes=7340032,webhook.maxConcurrentReviews=9,webhook.reviewDeadline=3s",
        "--set",
        "webhook.drainGrace=1s,webhook.drainDeadline=2s",
        "--set",
        "native.enabled=false,native.skipTektonWait=false,native.minimumVersion=1.34",
        "--set-json",
        r#"knownSidecars=[{"name":"A","containers":["a"]}]"#,
    ];
    let rendered = render(helm, &everything);
    for (kind, name) in [
        ("Deployment", "kickstand-webhook"),
        ("Deployment", "kickstand-controller"),
        ("Job", "kickstand-uninstall"),
        ("Pod", TEST),
    ] {
        let arguments = rendered.arguments(kind, name);
        let output = Command::new(env!("CARGO_BIN_EXE_kickstand")).args([arguments[0], "--help"]).output().unwrap();
        let usage = String::from_utf8(output.stdout).unwrap();
        let known: BTreeSet<&str> = usage.split_whitespace().filter(|word| word.starts_with("--")).collect();
        for argument in &arguments[1..] {
            let flag = argument.split('=').next().unwrap();
            assert!(known.contains(flag), "kickstand {} has no {flag}", arguments[0]);
        }
    }
}

/// The Pod Security Standard `restricted`, as far as a pod without odd volumes can break it.
#[test]
fn every_pod_is_restricted() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &[]);
    let pods = rendered.pods();
    assert_eq!(pods.len(), 4);
    for (id, pod) in pods {
        let spec = &pod["spec"];
        for field in ["hostNetwork", "hostPID", "hostIPC", "initContainers"] {
            assert!(spec.get(field).is_none(), "{id}: {field}");
        }
        assert_eq!(
            spec["securityContext"],
            json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } }),
            "{id}"
        );
        let volumes = spec.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        assert!(volumes.iter().all(|volume| volume.get("secret").is_some()), "{id}");
        let containers = spec["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1, "{id}");
        assert_eq!(
            containers[0]["securityContext"],
            json!({
                "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"] },
                "readOnlyRootFilesystem": true,
                "runAsNonRoot": true,
            }),
            "{id}"
        );
        let resources = &containers[0]["resources"];
        assert!(resources["limits"].get("memory").is_some() && resources["limits"].get("cpu").is_none(), "{id}");
        assert!(resources["requests"].get("memory").is_some() && resources["requests"].get("cpu").is_some(), "{id}");
    }
}

#[test]
fn no_mesh_gets_into_our_pods_whatever_the_values_say() {
    let helm = helm_or_skip!();
    let rendered = render(
        helm,
        &[
            "--set-json",
            r#"podLabels={"sidecar.istio.io/inject":"true","istio.io/dataplane-mode":"ambient","app.kubernetes.io/name":"x","team":"ci"}"#,
            "--set-json",
            r#"podAnnotations={"linkerd.io/inject":"enabled","note":"x"}"#,
        ],
    );
    for (id, pod) in rendered.pods() {
        let metadata = &pod["metadata"];
        assert_eq!(metadata["labels"]["sidecar.istio.io/inject"], "false", "{id}");
        assert_eq!(metadata["labels"]["istio.io/dataplane-mode"], "none", "{id}");
        assert_eq!(metadata["labels"]["app.kubernetes.io/name"], "kickstand", "{id}");
        assert_eq!(metadata["labels"]["team"], "ci", "{id}");
        assert_eq!(metadata["annotations"]["linkerd.io/inject"], "disabled", "{id}");
        assert_eq!(metadata["annotations"]["note"], "x", "{id}");
    }
}

#[test]
fn selectors_find_the_pods_that_they_mean() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &["--set", "networkPolicy.enabled=true"]);
    let finds = |selector: &Value| -> Vec<String> {
        let wanted = selector.as_object().unwrap();
        rendered
            .pods()
            .into_iter()
            .filter(|(_, pod)| wanted.iter().all(|(key, value)| &pod["metadata"]["labels"][key] == value))
            .map(|(id, _)| id)
            .collect()
    };
    for component in ["webhook", "controller"] {
        let name = format!("kickstand-{component}");
        let selectors = [
            &rendered.one("Deployment", &name)["spec"]["selector"]["matchLabels"],
            &rendered.one("PodDisruptionBudget", &name)["spec"]["selector"]["matchLabels"],
            &rendered.one("NetworkPolicy", &name)["spec"]["podSelector"]["matchLabels"],
        ];
        for selector in selectors {
            assert_eq!(finds(selector), [format!("Deployment/{name}")]);
        }
    }
    let service = &rendered.one("Service", "kickstand-webhook")["spec"];
    assert_eq!(finds(&service["selector"]), ["Deployment/kickstand-webhook"]);
    assert_eq!(
        service["ports"],
        json!([{ "name": "https", "port": 443, "targetPort": "https", "appProtocol": "https" }])
    );
}

#[test]
fn an_update_or_a_drained_node_leaves_one_of_two_running() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &[]);
    for name in ["kickstand-webhook", "kickstand-controller"] {
        let deployment = &rendered.one("Deployment", name)["spec"];
        assert_eq!(deployment["replicas"], 2);
        assert_eq!(deployment["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
        assert_eq!(deployment["template"]["spec"]["terminationGracePeriodSeconds"], 30);
        let budget = &rendered.one("PodDisruptionBudget", name)["spec"];
        assert_eq!(budget["maxUnavailable"], 1);
        assert_eq!(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow");
    }
}

#[test]
fn the_webhook_starts_only_with_a_certificate_and_sees_it_renewed() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &[]);
    let pod = &rendered.one("Deployment", "kickstand-webhook")["spec"]["template"]["spec"];
    let items = json!([{ "key": "tls.crt", "path": "tls.crt" }, { "key": "tls.key", "path": "tls.key" }]);
    assert_eq!(
        pod["volumes"],
        json!([{ "name": "tls", "secret": { "secretName": "kickstand-webhook-tls", "items": items } }])
    );
    // A mount with subPath is never updated.
    assert_eq!(
        pod["containers"][0]["volumeMounts"],
        json!([{ "name": "tls", "mountPath": "/etc/kickstand/tls", "readOnly": true }])
    );
}

#[rstest]
#[case::by_default(&[], "ghcr.io/kickstand-dev/kickstand:0.1.0", "ghcr.io/kickstand-dev/kickstand-nop:0.1.0")]
#[case::a_mirror_for_both(&["--set", "image.registry=r.example:5000/m"], "r.example:5000/m/kickstand-dev/kickstand:0.1.0", "r.example:5000/m/kickstand-dev/kickstand-nop:0.1.0")]
#[case::two_registries(&["--set", "image.registry=a,nopImage.registry=b"], "a/kickstand-dev/kickstand:0.1.0", "b/kickstand-dev/kickstand-nop:0.1.0")]
#[case::tags(&["--set-string", "image.tag=1,nopImage.tag=2"], "ghcr.io/kickstand-dev/kickstand:1", "ghcr.io/kickstand-dev/kickstand-nop:2")]
#[case::a_digest_wins_over_a_tag(
    &["--set", "image.tag=x,nopImage.tag=y", "--set", "image.digest=sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,nopImage.digest=sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"],
    "ghcr.io/kickstand-dev/kickstand@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ghcr.io/kickstand-dev/kickstand-nop@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)]
fn images_are_named_as_the_values_say(#[case] set: &[&str], #[case] own: &str, #[case] nop: &str) {
    let helm = helm_or_skip!();
    let rendered = render(helm, set);
    for (id, pod) in rendered.pods() {
        assert_eq!(pod["spec"]["containers"][0]["image"], own, "{id}");
    }
    let flag = format!("--nop-image={nop}");
    assert!(rendered.arguments("Deployment", "kickstand-controller").contains(&flag.as_str()));
}

#[test]
fn the_chart_is_of_the_crates_version() {
    let chart: Value =
        serde_saphyr::from_str(&fs::read_to_string(Path::new(CHART).join("Chart.yaml")).unwrap()).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

// What they may do.

/// One line a rule: `account @ where: verbs group/resources [names]`.
fn grants(rendered: &Rendered) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for binding in ["RoleBinding", "ClusterRoleBinding"].into_iter().flat_map(|kind| rendered.all(kind)) {
        let (kind, name) = (binding["roleRef"]["kind"].as_str().unwrap(), binding["roleRef"]["name"].as_str().unwrap());
        let namespace = binding["metadata"]["namespace"].as_str();
        let role = rendered.one_in(kind, namespace.filter(|_| kind == "Role"), name);
        let place = namespace.unwrap_or("cluster");
        for subject in binding["subjects"].as_array().unwrap() {
            assert_eq!(
                (subject["kind"].as_str(), subject["namespace"].as_str()),
                (Some("ServiceAccount"), Some(NAMESPACE))
            );
            rendered.one("ServiceAccount", subject["name"].as_str().unwrap());
            for rule in role["rules"].as_array().unwrap() {
                let names = rule
                    .get("resourceNames")
                    .map(|names| format!(" [{}]", strings(names).join(" ")))
                    .unwrap_or_default();
                for group in strings(&rule["apiGroups"]) {
                    lines.insert(format!(
                        "{} @ {place}: {} {}{}{names}",
                        subject["name"].as_str().unwrap().trim_start_matches("kickstand-"),
                        strings(&rule["verbs"]).join(","),
                        if group.is_empty() { String::new() } else { format!("{group}/") },
                        strings(&rule["resources"]).join(","),
                    ));
                }
            }
        }
    }
    lines
}

fn lines(set: BTreeSet<String>) -> String {
    set.into_iter().collect::<Vec<_>>().join("\n")
}

#[test]
fn rights_are_these_and_no_more() {
    let helm = helm_or_skip!();
    let all = grants(&render(helm, &[]));
    assert!(!all.iter().any(|line| line.contains('*')));
    insta::assert_snapshot!(lines(all), @r"
    controller @ cluster: create events.k8s.io/events
    controller @ cluster: get,list,watch tekton.dev/taskruns
    controller @ cluster: get,patch admissionregistration.k8s.io/mutatingwebhookconfigurations [zz-kickstand 0-kickstand]
    controller @ cluster: list,watch namespaces,nodes
    controller @ cluster: list,watch,patch,delete pods
    controller @ kickstand-system: create coordination.k8s.io/leases
    controller @ kickstand-system: get,patch coordination.k8s.io/leases [kickstand-controller]
    controller @ kickstand-system: get,patch secrets [kickstand-ca kickstand-webhook-tls]
    helm-test @ kickstand-helm-test: create pods
    helm-test @ kickstand-system: get coordination.k8s.io/leases [kickstand-controller]
    uninstall @ cluster: create events.k8s.io/events
    uninstall @ cluster: get tekton.dev/taskruns
    uninstall @ cluster: get,delete admissionregistration.k8s.io/mutatingwebhookconfigurations [zz-kickstand 0-kickstand]
    uninstall @ cluster: list,patch pods
    webhook @ kickstand-system: get coordination.k8s.io/leases [kickstand-controller]
    ");
}

#[test]
fn with_watch_namespaces_no_pod_elsewhere_can_be_touched() {
    let helm = helm_or_skip!();
    let limited = grants(&render(helm, &["--set", "watchNamespaces={team}"]));
    let everywhere = grants(&render(helm, &[]));
    insta::assert_snapshot!(lines(limited.difference(&everywhere).cloned().collect()), @r"
    controller @ team: create events.k8s.io/events
    controller @ team: get,list,watch tekton.dev/taskruns
    controller @ team: list,watch,patch,delete pods
    helm-test @ team: create pods
    uninstall @ team: create events.k8s.io/events
    uninstall @ team: get tekton.dev/taskruns
    uninstall @ team: list,patch pods
    ");
    // The same rights, in another place.
    let test = |line: &String| line.starts_with("helm-test @");
    let moved: BTreeSet<String> =
        limited.iter().filter(|line| !test(line)).map(|line| line.replace("@ team:", "@ cluster:")).collect();
    assert_eq!(moved, everywhere.into_iter().filter(|line| !test(line)).collect());
}

#[test]
fn who_keeps_certificates_otherwise_gives_no_right_to_any() {
    let helm = helm_or_skip!();
    let set = ["--set", "certificates.managed=false,certificates.secretName=mine"];
    let rendered = render(helm, &set);
    assert_eq!(rendered.all("Secret").count(), 0);
    assert!(!grants(&rendered).iter().any(|line| {
        line.contains("secrets") || (line.starts_with("controller") && line.contains("mutatingwebhookconfigurations"))
    }));
    let pod = &rendered.one("Deployment", "kickstand-webhook")["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][0]["secret"]["secretName"], "mine");
    assert!(refusal(helm, &["--set", "certificates.managed=false"]).contains("certificates.secretName must name"));
}

#[test]
fn tokens_are_mounted_by_pods_and_not_by_default() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &[]);
    for account in rendered.all("ServiceAccount") {
        assert_eq!(account["automountServiceAccountToken"], false, "{}", id(account));
    }
    for (id, pod) in rendered.pods() {
        assert_eq!(pod["spec"]["automountServiceAccountToken"], true, "{id}");
        assert_eq!(format!("{}", pod["spec"]["serviceAccountName"].as_str().unwrap()), id.split('/').nth(1).unwrap());
    }
}

#[test]
fn before_an_uninstall_gates_are_released_with_rights_that_go_with_the_job() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &["--set", "watchNamespaces={a,b}"]);
    let hooks: Vec<&Value> = rendered
        .0
        .iter()
        .filter(|object| object["metadata"]["labels"]["app.kubernetes.io/component"] == "uninstall")
        .collect();
    assert_eq!(hooks.len(), 7);
    for object in hooks {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "pre-delete", "{}", id(object));
        assert_eq!(annotations["helm.sh/hook-delete-policy"], "before-hook-creation,hook-succeeded");
        let weight =
            annotations.get("helm.sh/hook-weight").map_or(0, |weight| weight.as_str().unwrap().parse().unwrap());
        assert_eq!(weight, if object["kind"] == "Job" { 0 } else { -10 }, "{}", id(object));
    }
    let job = &rendered.one("Job", "kickstand-uninstall")["spec"];
    assert_eq!((&job["backoffLimit"], &job["activeDeadlineSeconds"]), (&json!(1), &json!(180)));
    let without = render(helm, &["--set", "uninstall.release=false"]);
    assert!(!without.0.iter().any(|object| object["metadata"].to_string().contains("pre-delete")));
}

fn hooks_of_the_test(rendered: &Rendered) -> Vec<&Value> {
    let is_test = |object: &&Value| object["metadata"]["labels"]["app.kubernetes.io/component"] == "test";
    rendered.0.iter().filter(is_test).collect()
}

#[test]
fn a_test_leaves_nothing_but_the_log_of_one_that_failed() {
    let helm = helm_or_skip!();
    let rendered = render(helm, &[]);
    let hooks = hooks_of_the_test(&rendered);
    assert_eq!(hooks.len(), 7);
    for object in hooks {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["helm.sh/hook"], "test", "{}", id(object));
        let (weight, policy) = match object["kind"].as_str().unwrap() {
            // Never one that somebody else has made.
            "Namespace" => (-20, "hook-succeeded,hook-failed"),
            "Pod" => (0, "before-hook-creation,hook-succeeded"),
            _ => (-10, "before-hook-creation,hook-succeeded"),
        };
        assert_eq!(annotations["helm.sh/hook-delete-policy"], policy, "{}", id(object));
        let found =
            annotations.get("helm.sh/hook-weight").map_or(0, |weight| weight.as_str().unwrap().parse().unwrap());
        assert_eq!(found, weight, "{}", id(object));
        // Helm 3 asks for a pod's log by the name of every hook.
        assert_eq!(object["metadata"]["name"], TEST);
    }
    let pod = &rendered.one("Pod", TEST)["spec"];
    assert_eq!((&pod["restartPolicy"], &pod["activeDeadlineSeconds"]), (&json!("Never"), &json!(240)));
}

/// Whatever the mode, `helm test` tries a namespace that the webhook is called for, unless somebody names another.
#[test]
fn what_is_tested_is_covered_out_of_the_box() {
    let helm = helm_or_skip!();
    for mode in MODES {
        let rendered = render(helm, &["--set", mode]);
        let made = rendered.one("Namespace", TEST);
        assert_eq!(made["metadata"]["labels"]["kickstand.dev/inject"], "true");
        let namespace = Labels::from([("kubernetes.io/metadata.name", TEST), ("kickstand.dev/inject", "true")]);
        let sample = Labels::from([("tekton.dev/taskRun", "kickstand-doctor")]);
        assert_eq!(matching(rendered.entries(LATE), &namespace, &sample).len(), 1, "{mode}");
        assert!(rendered.arguments("Pod", TEST).contains(&format!("--namespace={TEST}").as_str()));
    }
}

#[rstest]
#[case::the_first_that_is_watched("watchNamespaces={a,b}", "a")]
#[case::the_one_that_is_named("test.namespace=mine", "mine")]
#[case::one_of_those_that_are_watched("watchNamespaces={a,b},test.namespace=b", "b")]
fn a_namespace_of_somebodys_is_neither_made_nor_deleted(#[case] set: &str, #[case] expected: &str) {
    let helm = helm_or_skip!();
    let rendered = render(helm, &["--set", set]);
    assert_eq!(rendered.all("Namespace").count(), 0);
    assert!(rendered.arguments("Pod", TEST).contains(&format!("--namespace={expected}").as_str()));
    rendered.one_in("RoleBinding", Some(expected), TEST);
}

// The values.

fn values() -> Value {
    serde_saphyr::from_str(&fs::read_to_string(Path::new(CHART).join("values.yaml")).unwrap()).unwrap()
}

/// Maps that are one value: their keys are the user's.
const MAPS: [&str; 6] =
    ["nodeSelector", "affinity", "podLabels", "podAnnotations", "configurationAnnotations", "labels"];

/// Every value by its path; and the paths of the sections that hold them.
fn leaves(value: &Value, path: &str, found: &mut BTreeMap<String, Value>, sections: &mut Vec<String>) {
    let name = path.rsplit('.').next().unwrap();
    match value.as_object() {
        Some(map) if !MAPS.contains(&name) => {
            sections.push(path.to_owned());
            for (key, value) in map {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                leaves(value, &path, found, sections);
            }
        }
        _ => {
            found.insert(path.to_owned(), value.clone());
        }
    }
}

/// A value that differs from the default, and is valid.
fn another(path: &str, default: &Value) -> Value {
    let name = path.rsplit('.').next().unwrap();
    match (name, default) {
        ("namespaces", _) => json!("all"),
        ("pullPolicy", _) => json!("Always"),
        ("format", _) => json!("text"),
        ("level", _) => json!("debug"),
        ("minimumVersion", _) => json!("1.34"),
        ("knownSidecars", _) => json!([{ "name": "other", "containers": ["other"] }]),
        ("reviewDeadline", _) => json!("3s"),
        ("digest", _) => json!(format!("sha256:{}", "0".repeat(64))),
        ("imagePullSecrets", _) => json!([{ "name": "other" }]),
        ("tolerations", _) => json!([{ "operator": "Exists" }]),
        ("metricsFrom", _) => json!([{ "podSelector": {} }]),
        ("extraArgs", _) => json!(["--other"]),
        ("maxBodyBytes", _) => json!(70_000),
        ("maxConcurrentReviews", _) => json!(7),
        ("cpu" | "memory", _) => json!("7"),
        ("interval", _) | (_, Value::Null) => json!("7s"),
        (_, Value::Bool(value)) => json!(!value),
        (_, Value::Number(number)) => json!(number.as_i64().unwrap() + 1),
        (_, Value::String(_)) => json!("other"),
        (_, Value::Array(_)) => json!(["other"]),
        (_, Value::Object(_)) => json!({ "other": "value" }),
    }
}

#[test]
fn every_value_changes_what_is_rendered() {
    let helm = helm_or_skip!();
    let mut found = BTreeMap::new();
    leaves(&values(), "", &mut found, &mut Vec::new());
    assert!(found.len() > 40);
    let mut unchanged: BTreeMap<&[&str], String> = BTreeMap::new();
    for (path, default) in found {
        // What makes the value count. In JSON like the value: helm reads all `--set` after all `--set-json`.
        let base: &[&str] = match path.as_str() {
            "metrics.podMonitor.enabled" | "networkPolicy.enabled" => &[],
            "certificates.managed" => &["certificates.secretName=\"mine\""],
            "certificates.secretName" => &["certificates={\"managed\":false,\"secretName\":\"mine\"}"],
            "webhook.hostNetwork" => &["webhook.port=9443"],
            _ => &["metrics.podMonitor.enabled=true", "networkPolicy.enabled=true"],
        };
        let changed = format!("{path}={}", another(&path, &default));
        let with = |more: &[&str]| {
            let arguments: Vec<&str> = base.iter().chain(more).flat_map(|set| ["--set-json", *set]).collect();
            text(helm, &arguments)
        };
        let before = unchanged.entry(base).or_insert_with(|| with(&[]));
        assert!(*before != with(&[&changed]), "{changed} changes nothing");
    }
}

#[test]
fn every_value_says_what_it_is_for() {
    let file = fs::read_to_string(Path::new(CHART).join("values.yaml")).unwrap();
    // The keys above the line, by indentation, and whether a comment explains them.
    let mut above: Vec<(usize, bool)> = Vec::new();
    let mut explained = false;
    let lines: Vec<&str> = file.lines().filter(|line| !line.trim().is_empty()).collect();
    for (index, line) in lines.iter().enumerate() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if content.starts_with('#') {
            explained |= content.starts_with("# -- ");
            continue;
        }
        above.retain(|&(outer, _)| outer < indent);
        let below = lines[index + 1..].iter().find(|line| !line.trim_start().starts_with('#'));
        let is_section = content.ends_with(':') && below.is_some_and(|line| !line.trim_start().starts_with('-'));
        let inherited = above.iter().any(|&(_, explained)| explained);
        assert!(explained || inherited || is_section, "not explained: {line}");
        above.push((indent, explained));
        explained = false;
    }
}

#[test]
fn the_schema_knows_the_values_and_no_others() {
    fn names(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        match schema.get("properties").and_then(Value::as_object) {
            Some(properties) => {
                assert_eq!(schema["additionalProperties"], false, "{path}");
                for (key, schema) in properties {
                    names(schema, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, found);
                }
            }
            None => {
                found.insert(path.to_owned());
            }
        }
    }
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(Path::new(CHART).join("values.schema.json")).unwrap()).unwrap();
    let mut known = BTreeSet::new();
    names(&schema, "", &mut known);
    // Helm's own, for a chart within another.
    assert!(known.remove("global"));
    let mut found = BTreeMap::new();
    leaves(&values(), "", &mut found, &mut Vec::new());
    // Of resources the schema fixes requests and limits, not what is asked for.
    let found: BTreeSet<String> = found
        .into_keys()
        .map(|path| path.strip_suffix(".cpu").or(path.strip_suffix(".memory")).map(str::to_owned).unwrap_or(path))
        .collect();
    assert_eq!(known, found);
}

#[test]
fn a_mistyped_name_is_refused_in_every_section() {
    let helm = helm_or_skip!();
    let mut sections = Vec::new();
    leaves(&values(), "", &mut BTreeMap::new(), &mut sections);
    for section in sections.iter().filter(|section| !section.ends_with("requests") && !section.ends_with("limits")) {
        let set = if section.is_empty() { "tipo=x".to_owned() } else { format!("{section}.tipo=x") };
        assert!(refusal(helm, &["--set", &set]).contains("tipo"), "{set}");
    }
}

#[rstest]
#[case::no_such_mode("namespaces=istoi", "namespaces")]
#[case::a_list_as_text("watchNamespaces=team", "watchNamespaces")]
#[case::not_a_namespace("watchNamespaces={Team_A}", "watchNamespaces")]
#[case::kube_system("watchNamespaces={kube-system}", "kube-system cannot be covered")]
#[case::its_own_namespace("watchNamespaces={kickstand-system}", "kickstand-system cannot be covered")]
#[case::a_test_in_kube_system("test.namespace=kube-system", "test.namespace: kube-system is never covered")]
#[case::a_test_where_nobody_watches("watchNamespaces={a},test.namespace=b", "test.namespace: b is never covered")]
#[case::a_test_in_no_namespace("test.namespace=Team_A", "namespace")]
#[case::a_digest_without_its_kind("image.digest=aaaa", "digest")]
#[case::a_tag_in_the_repository("image.repository=a/b:1", "repository")]
#[case::too_long_to_wait("webhook.timeoutSeconds=30", "timeoutSeconds")]
#[case::no_duration("webhook.drainGrace=5", "drainGrace")]
#[case::no_duration_at_all("webhook.drainGrace=", "drainGrace")]
#[case::units_in_disorder("webhook.drainGrace=5s1m", "drainGrace")]
#[case::a_negative_duration("webhook.drainDeadline=-5s", "drainDeadline")]
#[case::a_deadline_after_the_timeout("webhook.reviewDeadline=5s", "webhook.reviewDeadline is 5s")]
#[case::a_deadline_in_other_units("webhook.reviewDeadline=1m", "webhook.reviewDeadline is 1m")]
#[case::no_time_to_review("webhook.reviewDeadline=0s", "webhook.reviewDeadline is 0s")]
#[case::killed_while_draining(
    "webhook.drainDeadline=25s",
    "must together be less than terminationGracePeriodSeconds (30)"
)]
#[case::less_than_the_built_in("terminationGracePeriodSeconds=25", "(5s, 20s) must together be less")]
#[case::no_such_level("log.level=inof", "level")]
#[case::no_level_of_a_module("log.level=info\\,kickstand=loud", "level")]
#[case::two_levels("log.level=info debug", "level")]
#[case::no_boolean("native.enabled=maybe", "enabled")]
#[case::yes_for_true("native.skipTektonWait=yes", "skipTektonWait")]
#[case::too_old_for_native("native.minimumVersion=1.28", "minimumVersion")]
#[case::a_patch_version("native.minimumVersion=1.33.2", "minimumVersion")]
#[case::a_version_of_two_digits("native.minimumVersion=1.3", "minimumVersion")]
#[case::no_version("native.minimumVersion=v1.33", "minimumVersion")]
#[case::one_for_true("istio.enableNamespacesByDefault=1", "enableNamespacesByDefault")]
#[case::nobody("webhook.replicas=0", "replicas")]
#[case::one_port_for_two("webhook.port=8080", "both 8080")]
#[case::the_kubelets_port("webhook.hostNetwork=true", "10250 of a node is the kubelet's")]
#[case::several_in_one("tektonNopImages={a b}", "tektonNopImages")]
#[case::a_bare_word("controller.extraArgs={debug}", "extraArgs")]
fn a_value_that_cannot_be_meant_is_refused(#[case] set: &str, #[case] says: &str) {
    let helm = helm_or_skip!();
    let refusal = refusal(helm, &["--set", set]);
    assert!(refusal.contains(says), "{refusal}");
}

#[test]
fn as_part_of_another_chart_it_accepts_helms_own_global() {
    let helm = helm_or_skip!();
    text(helm, &["--set", "global.registry=x"]);
}

#[test]
fn a_release_of_another_name_shares_no_name_with_the_first() {
    let helm = helm_or_skip!();
    let names = |arguments: &[&str]| -> BTreeSet<String> { render(helm, arguments).0.iter().map(id).collect() };
    let first = names(&[]);
    let second = names(&["--set", "fullnameOverride=second"]);
    assert_eq!(first.len(), second.len());
    assert!(first.is_disjoint(&second));
}

// What the chart's schema allows, the binary takes.

#[test]
fn a_log_level_that_the_schema_allows_is_one() {
    let helm = helm_or_skip!();
    for level in ["info", "off", "DEBUG", "3", "info,kickstand::controller=debug", "warn,kickstand=trace,kube=off"] {
        let set = serde_json::to_string(level).unwrap();
        let rendered = render(helm, &["--set-json", &format!("log.level={set}")]);
        let argument = format!("--log-level={level}");
        assert!(rendered.arguments("Deployment", "kickstand-webhook").contains(&argument.as_str()));
        tracing_subscriber::EnvFilter::builder().parse(level).unwrap();
    }
}

#[test]
fn a_duration_that_the_schema_allows_is_one() {
    let helm = helm_or_skip!();
    for (text, milliseconds) in [("500ms", 500), ("3s", 3_000), ("1s500ms", 1_500), ("0h0m2s", 2_000)] {
        let rendered = render(helm, &["--set", &format!("webhook.reviewDeadline={text}")]);
        let argument = format!("--review-deadline={text}");
        assert!(rendered.arguments("Deployment", "kickstand-webhook").contains(&argument.as_str()));
        assert_eq!(text.parse::<jiff::SignedDuration>().unwrap().as_millis(), milliseconds);
    }
}

/// Else each review that takes too long would count as nobody's failure but the API server's.
#[test]
fn the_webhook_gives_up_before_the_api_server_does() {
    let helm = helm_or_skip!();
    for (seconds, deadline) in [(1, Some("800ms")), (4, Some("3200ms")), (5, None), (10, None)] {
        let rendered = render(helm, &["--set", &format!("webhook.timeoutSeconds={seconds}")]);
        let arguments = rendered.arguments("Deployment", "kickstand-webhook");
        let found = arguments.iter().find_map(|argument| argument.strip_prefix("--review-deadline="));
        assert_eq!(found, deadline);
    }
}

#[test]
fn only_what_differs_from_the_built_in_is_passed_on() {
    let helm = helm_or_skip!();
    let rendered =
        render(helm, &["--set", "native.skipTektonWait=false", "--set-string", "native.minimumVersion=1.30"]);
    assert!(rendered.arguments("Deployment", "kickstand-webhook").contains(&"--skip-tekton-wait=false"));
    assert!(rendered.arguments("Deployment", "kickstand-controller").contains(&"--native-minimum=1.30"));
    let rendered = text(helm, &[]);
    for flag in ["--native", "--skip-tekton-wait", "--known-sidecars"] {
        assert!(!rendered.contains(flag), "{flag}");
    }
}

// The sidecars that an operator adds.

fn known_sidecars(helm: &str, rows: &Value) -> Output {
    template(helm, &["--set-json", &format!("knownSidecars={rows}")])
}

#[test]
fn every_row_that_we_know_could_be_an_operators() {
    let helm = helm_or_skip!();
    let table = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/pod/known-sidecars.json")).unwrap();
    let rendered = render(helm, &["--set-json", &format!("knownSidecars={table}")]);
    let map = rendered.one("ConfigMap", "kickstand-known-sidecars");
    let read = Known::read(map["data"]["known-sidecars.json"].as_str().unwrap()).unwrap();
    assert_eq!(&read, Known::builtin());

    for name in ["kickstand-webhook", "kickstand-controller"] {
        let spec = &rendered.one("Deployment", name)["spec"]["template"]["spec"];
        let file = rendered
            .arguments("Deployment", name)
            .into_iter()
            .find_map(|argument| argument.strip_prefix("--known-sidecars="))
            .unwrap();
        let mounts = spec["containers"][0]["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["name"] == "known-sidecars").unwrap();
        assert_eq!(mount["readOnly"], true);
        assert_eq!(file, format!("{}/known-sidecars.json", mount["mountPath"].as_str().unwrap()));
        let volumes = spec["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == "known-sidecars").unwrap();
        assert_eq!(volume["configMap"], json!({ "name": "kickstand-known-sidecars" }));
    }
}

#[test]
fn the_row_that_the_documentation_shows_is_one() {
    let helm = helm_or_skip!();
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations.md")).unwrap();
    let shown = guide.split("```yaml\n").find(|block| block.starts_with("knownSidecars:")).unwrap();
    let values: Value = serde_saphyr::from_str(shown.split("```").next().unwrap()).unwrap();
    let rows = &values["knownSidecars"];
    assert_eq!(Known::read(&rows.to_string()).unwrap().rows().len(), 1);
    let output = known_sidecars(helm, rows);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn another_table_starts_other_pods() {
    let helm = helm_or_skip!();
    let templates = |rows: &str| -> Vec<Value> {
        let rendered = render(helm, &["--set-json", &format!("knownSidecars={rows}")]);
        ["kickstand-webhook", "kickstand-controller"]
            .map(|name| rendered.one("Deployment", name)["spec"]["template"]["metadata"]["annotations"].clone())
            .into()
    };
    let (none, one, other) =
        (templates("[]"), templates(r#"[{"name":"A","images":["a"]}]"#), templates(r#"[{"name":"A","images":["b"]}]"#));
    for at in 0..2 {
        assert!(none[at] != one[at] && one[at] != other[at], "{}", one[at]);
    }
}

#[rstest]
#[case::no_name(json!([{ "containers": ["a"] }]))]
#[case::an_unknown_field(json!([{ "name": "A", "containers": ["a"], "onterm": "unknown" }]))]
#[case::an_unknown_role(json!([{ "name": "A", "containers": ["a"], "role": "proxy" }]))]
#[case::an_unknown_end(json!([{ "name": "A", "containers": ["a"], "onTerm": "exits" }]))]
#[case::text_for_a_list(json!([{ "name": "A", "containers": "a" }]))]
#[case::an_ask_for_nothing(json!([{ "name": "A", "containers": ["a"], "ask": { "when": "a/b" } }]))]
#[case::a_value_that_is_no_text(json!([{ "name": "A", "containers": ["a"], "ask": { "set": { "a/b": true } } }]))]
#[case::a_mark_without_an_annotation(json!([{ "name": "A", "containers": ["a"], "classic": { "unless": "a/b" } }]))]
#[case::no_list(json!({ "name": "A" }))]
fn a_row_that_the_binary_would_refuse_is_refused_before(#[case] rows: Value) {
    let helm = helm_or_skip!();
    assert!(Known::read(&rows.to_string()).is_err());
    let output = known_sidecars(helm, &rows);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("/knownSidecars"), "{output:?}");
}

/// What would be read, but could never fit.
#[rstest]
#[case::fits_nothing(json!([{ "name": "A" }]))]
#[case::an_asterisk_within(json!([{ "name": "A", "containers": ["a*b"] }]))]
#[case::everything(json!([{ "name": "A", "images": ["*"] }]))]
#[case::no_annotation(json!([{ "name": "A", "containers": ["a"], "ask": { "set": { "a b": "c" } } }]))]
fn a_row_that_cannot_be_meant_is_refused(#[case] rows: Value) {
    let helm = helm_or_skip!();
    assert!(!known_sidecars(helm, &rows).status.success());
}
