//! `kickstand inject`, through the function that the command calls.
#![allow(clippy::unwrap_used)] // The lint knows helpers of tests only inside of #[test].

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{CommandFactory as _, Parser};
use kickstand::inject::{self, InjectArgs};
use rstest::rstest;
use serde_json::{Value, json};

#[derive(Parser)]
#[command(name = "inject")]
struct Cli {
    #[command(flatten)]
    args: InjectArgs,
}

struct Outcome {
    result: Result<(), inject::Error>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn ok(self) -> (String, String) {
        self.result.unwrap();
        (self.stdout, self.stderr)
    }

    /// What `main` prints; nothing else may have been written by then.
    fn error(self) -> String {
        assert_eq!((self.stdout.as_str(), self.stderr.as_str()), ("", ""));
        self.result.unwrap_err().to_string()
    }
}

fn inject(flags: &[&str], input: impl AsRef<[u8]>) -> Outcome {
    let args = Cli::parse_from([&["inject"], flags].concat()).args;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let result = inject::run(&args, input.as_ref(), &mut stdout, &mut stderr);
    Outcome { result, stdout: String::from_utf8(stdout).unwrap(), stderr: String::from_utf8(stderr).unwrap() }
}

fn piped(output: &str, input: impl AsRef<[u8]>) -> Outcome {
    inject(&["-f", "-", "-o", output], input)
}

/// A pod that is gated, with things in it that no Kubernetes has, in an order that nobody writes.
const POD: &str = r#"# What people put on top.
kind: Pod
apiVersion: v1
metadata:
  name: build-pod
  labels: {tekton.dev/taskRun: build}
  ownerReferences:
    - {apiVersion: tekton.dev/v1, kind: TaskRun, name: build, uid: u-1, controller: true}
spec:
  ofTomorrow: {deep: [1, -2, 18446744073709551615, 0.5, true, null]}
  volumes: []
  containers:
  - name: step-build
    ofTomorrow: yes
    command: [/tekton/bin/entrypoint]
    args: [-wait_file, /tekton/downward/ready, -wait_file_content, -post_file, /tekton/run/0/out, --, "on", "1e3"]
    image: busybox
  - name: sidecar-web
    image: nginx
"#;

/// A pod that nothing is to be done to.
const PLAIN: &str =
    r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "plain-"}, "spec": {"containers": []}}"#;

fn pod() -> Value {
    json(&piped("json", POD).ok().0).remove(0)
}

fn json(text: &str) -> Vec<Value> {
    serde_json::Deserializer::from_str(text).into_iter().map(Result::unwrap).collect()
}

fn yaml(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

// What comes out

#[test]
fn a_pod_comes_out_as_it_came_in_but_for_the_patch() {
    let (stdout, stderr) = piped("yaml", POD).ok();
    assert_eq!(stderr, "");
    insta::assert_snapshot!(stdout.replace(env!("CARGO_PKG_VERSION"), "0"), @r#"
    kind: Pod
    apiVersion: v1
    metadata:
      name: build-pod
      labels:
        tekton.dev/taskRun: build
      ownerReferences:
      - apiVersion: tekton.dev/v1
        kind: TaskRun
        name: build
        uid: u-1
        controller: true
      annotations:
        kickstand.dev/injected: "{\"version\":\"0\",\"strategy\":\"classic\",\"gate\":\"/kickstand/ready\",\"waitsFor\":[\"sidecar-web\"]}"
    spec:
      ofTomorrow:
        deep:
        - 1
        - -2
        - 18446744073709551615
        - 0.5
        - true
        - null
      volumes:
      - name: kickstand-gate
        downwardAPI:
          items:
          - path: ready
            fieldRef:
              fieldPath: metadata.annotations['kickstand.dev/ready']
      containers:
      - name: step-build
        ofTomorrow: true
        command:
        - /tekton/bin/entrypoint
        args:
        - -wait_file
        - /tekton/downward/ready,/kickstand/ready
        - -wait_file_content
        - -post_file
        - /tekton/run/0/out
        - --
        - "on"
        - "1e3"
        image: busybox
        volumeMounts:
        - name: kickstand-gate
          mountPath: /kickstand
          readOnly: true
      - name: sidecar-web
        image: nginx
    "#);
}

#[test]
fn yaml_is_the_default() {
    assert_eq!(inject(&["-f", "-"], POD).ok(), piped("yaml", POD).ok());
}

#[test]
fn json_comes_out_in_the_same_order() {
    let (stdout, _) = piped("json", POD).ok();
    assert!(stdout.starts_with("{\n  \"kind\": \"Pod\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {"), "{stdout}");
    assert_eq!(json(&stdout), yaml(&piped("yaml", POD).ok().0));
}

#[test]
fn a_patch_is_what_the_webhook_would_answer() {
    let (stdout, _) = piped("patch", POD).ok();
    assert_eq!(stdout.lines().count(), 1);
    let [patch] = &json(&stdout)[..] else { panic!("{stdout}") };
    let paths: Vec<&str> =
        patch.as_array().unwrap().iter().map(|operation| operation["path"].as_str().unwrap()).collect();
    assert_eq!(
        paths,
        [
            "/spec/volumes/-",
            "/spec/containers/0/volumeMounts",
            "/spec/containers/0/args/1",
            "/metadata/annotations",
            "/metadata/annotations/kickstand.dev~1injected"
        ]
    );
}

#[test]
fn what_is_removed_leaves_the_order_of_the_rest_alone() {
    let annotations = "  annotations: {kickstand.dev/ready: x, b: '1', a: '2', c: '3'}\n  labels:";
    let (stdout, _) = piped("json", POD.replace("  labels:", annotations)).ok();
    let keys: Vec<String> = json(&stdout)[0]["metadata"]["annotations"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["b", "a", "c", "kickstand.dev/injected"]);
}

#[test]
fn a_pod_that_is_left_alone_comes_out_unchanged_and_says_why() {
    let (stdout, stderr) = piped("json", PLAIN).ok();
    assert_eq!(json(&stdout), json(PLAIN));
    assert_eq!(
        stderr,
        "document 1 of standard input: Pod plain- is not gated: not the pod of a TaskRun: it has no label tekton.dev/taskRun\n"
    );
    assert_eq!(piped("patch", PLAIN).ok().0, "[]\n");
}

#[test]
fn a_pod_that_is_gated_already_says_so_and_whom_it_waits_for() {
    let (once, said) = piped("yaml", POD).ok();
    assert_eq!(said, "");
    let (_, said) = piped("patch", once).ok();
    assert_eq!(said, "document 1 of standard input: Pod build-pod is gated already, waits for sidecar-web\n");
}

#[test]
fn a_pod_that_opted_out_says_by_which_setting() {
    let opted_out = POD.replace("labels: {", "labels: {kickstand.dev/inject: 'false', ");
    let said = piped("patch", opted_out).ok().1;
    assert!(said.ends_with("is not gated: opted out by the pod's label kickstand.dev/inject: \"false\"\n"), "{said}");
    let off = POD.replace("  labels:", "  annotations: {kickstand.dev/gate: 'false'}\n  labels:");
    let said = piped("patch", off).ok().1;
    assert!(said.ends_with("is not gated: annotated kickstand.dev/gate: \"false\"\n"), "{said}");
}

#[test]
fn a_second_pass_changes_nothing() {
    let (once, _) = piped("yaml", POD).ok();
    assert_eq!(piped("yaml", &once).ok().0, once);
    assert_eq!(piped("patch", &once).ok().0, "[]\n");
}

#[test]
fn without_a_controller_there_is_a_warning_and_no_gate() {
    let (stdout, stderr) = inject(&["-f", "-", "-o", "patch", "--no-controller"], POD).ok();
    assert_eq!(stdout, "[]\n");
    assert_eq!(
        stderr,
        "Warning: document 1 of standard input: Pod build-pod: kickstand: the first step does not wait for its sidecars: \
         no live controller is known, which would open the gate\n"
    );
}

#[test]
fn a_malformed_annotation_is_warned_of_and_the_pod_is_gated_all_the_same() {
    let input = POD.replace("  labels:", "  annotations: {kickstand.dev/gate-timeout: 5 parsecs}\n  labels:");
    let (stdout, stderr) = piped("patch", input).ok();
    assert_ne!(stdout, "[]\n");
    assert!(
        stderr.starts_with("Warning: document 1 of standard input: Pod build-pod: kickstand: annotation "),
        "{stderr}"
    );
}

// What goes in

#[test]
fn a_file_is_read_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pod.yaml");
    fs::write(&file, POD).unwrap();
    assert_eq!(inject(&["--filename", file.to_str().unwrap()], "").ok(), piped("yaml", POD).ok());
}

#[rstest]
#[case::documents_of_yaml(format!("---\n{POD}---\n{POD}---\n{PLAIN}\n"))]
#[case::with_empty_documents_and_comments(format!("\n---\n# nothing\n---\n{POD}---\n---\n{POD}---\n{PLAIN}\n...\n---\n"))]
#[case::objects_of_json(format!("{0}\n{0}{PLAIN}\n\n", pod_as_json()))]
#[case::json_as_documents_of_yaml(format!("{0}\n---\n{0}\n---\n{PLAIN}\n", pod_as_json()))]
#[case::a_list(format!("{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{0}, {0}, {PLAIN}]}}", pod_as_json()))]
#[case::a_byte_order_mark(format!("\u{feff}---\n{POD}---\n{POD}---\n{PLAIN}\n"))]
fn several_pods_come_out_in_their_order(#[case] input: String) {
    let expected = [pod(), pod(), json(PLAIN).remove(0)];
    assert_eq!(yaml(&piped("yaml", &input).ok().0), expected);
    assert_eq!(json(&piped("json", &input).ok().0), expected);
    let (patches, stderr) = piped("patch", &input).ok();
    let lines: Vec<&str> = patches.lines().collect();
    assert!(lines.len() == 3 && lines[0] == lines[1] && lines[0].starts_with("[{") && lines[2] == "[]", "{patches}");
    assert!(stderr.starts_with("document ") && stderr.contains(" 3 of standard input: Pod plain- "), "{stderr}");
}

fn pod_as_json() -> String {
    yaml(POD).remove(0).to_string()
}

#[test]
fn the_items_of_a_pod_list_need_no_kind() {
    let input = json!({ "kind": "PodList", "apiVersion": "v1", "items": [{ "metadata": { "name": "a" } }] });
    assert_eq!(
        piped("json", input.to_string()).ok().0,
        "{\n  \"apiVersion\": \"v1\",\n  \"kind\": \"Pod\",\n  \"metadata\": {\n    \"name\": \"a\"\n  }\n}\n"
    );
}

#[test]
fn anchors_and_merge_keys_are_resolved() {
    let input = "apiVersion: v1\nkind: Pod\nmetadata: &m\n  name: a\nspec:\n  x:\n    <<: *m\n    y: 1\n";
    assert_eq!(json(&piped("json", input).ok().0)[0]["spec"], json!({ "x": { "name": "a", "y": 1 } }));
}

#[rstest]
#[case("0644", json!(420))]
#[case("0o644", json!(420))]
#[case("0x1F", json!(31))]
#[case("-9223372036854775808", json!(i64::MIN))]
#[case("18446744073709551615", json!(u64::MAX))]
#[case("yes", json!(true))]
#[case("off", json!(false))]
#[case("~", json!(null))]
#[case("2026-01-15", json!("2026-01-15"))]
#[case("'0644'", json!("0644"))]
fn a_scalar_is_read_as_kubectl_reads_it(#[case] scalar: &str, #[case] value: Value) {
    let input = format!("apiVersion: v1\nkind: Pod\nspec:\n  x: {scalar}\n");
    assert_eq!(json(&piped("json", input).ok().0)[0]["spec"]["x"], value);
}

/// What YAML 1.1 (kubectl's) or 1.2 would read as something else than a string, and what could break a document.
const TRICKY: [&str; 64] = [
    "",
    "~",
    "null",
    "Null",
    "true",
    "True",
    "FALSE",
    "yes",
    "Yes",
    "YES",
    "no",
    "NO",
    "on",
    "On",
    "off",
    "OFF",
    "y",
    "Y",
    "n",
    "N",
    "1",
    "-1",
    "+1",
    "0644",
    "0o644",
    "0x1F",
    "0X1F",
    "0b101",
    "1_000",
    "0_7",
    "1e3",
    "1E3",
    "1.",
    ".5",
    "+.5",
    "1.5e+3",
    "1:30",
    "190:20:30",
    ".inf",
    "-.Inf",
    ".nan",
    "2026-01-15",
    "2026-01-15T10:00:00Z",
    "=",
    "<<",
    "-",
    "- a",
    "? a",
    ": a",
    "a: b",
    "a #b",
    "# a",
    "&a",
    "*a",
    "!a",
    "%a",
    "@a",
    "`a",
    "{a",
    "[a",
    "|",
    ">",
    "---",
    "...",
];

#[test]
fn a_string_stays_a_string_for_every_reader_of_the_output() {
    let strings: Vec<&str> =
        TRICKY.into_iter().chain([" a", "a ", "a:", "'a'", "\"a\"", "a\tb", "\u{85}", "\u{feff}"]).collect();
    let spec = json!({
        "values": strings,
        "keys": strings.iter().map(|key| ((*key).to_owned(), json!(1))).collect::<serde_json::Map<_, _>>(),
    });
    let input = json!({ "apiVersion": "v1", "kind": "Pod", "spec": spec }).to_string();
    let (stdout, _) = piped("yaml", input).ok();
    assert_eq!(yaml(&stdout)[0]["spec"], spec);
    // Read back by us is one thing; that older readers agree hangs on the quotes.
    for string in TRICKY {
        let bare = [format!("  - {string}\n"), format!("    {string}: 1\n")];
        assert!(!bare.iter().any(|bare| stdout.contains(bare)), "{string:?} is not quoted:\n{stdout}");
    }
}

#[test]
fn scripts_and_long_arguments_stay_readable() {
    let script = "#!/bin/sh\nset -e\n\n  echo 'a: b' # c\n";
    let long = "a long argument ".repeat(20);
    let spec = json!({ "script": script, "long": long.trim(), "tab": "\ta\n", "indented": "\n  a\nb" });
    let input = json!({ "apiVersion": "v1", "kind": "Pod", "spec": spec });
    let (stdout, _) = piped("yaml", input.to_string()).ok();
    assert_eq!(yaml(&stdout)[0], input);
    assert!(
        stdout.contains(
            "  script: |\n    #!/bin/sh\n    set -e\n\n      echo 'a: b' # c\n  long: a long argument a long"
        ),
        "{stdout}"
    );
    // kubectl takes no block that begins with a tab.
    assert!(stdout.contains("  tab: \"\\ta\\n\"\n  indented: \"\\n  a\\nb\"\n"), "{stdout}");
}

#[rstest]
fn every_pod_survives_both_formats(
    #[files("tests/fixtures/tekton/*/*.json")]
    #[files("tests/fixtures/injected/*/*.json")]
    path: PathBuf,
) {
    let input = fs::read_to_string(&path).unwrap();
    let (as_json, stderr) = piped("json", &input).ok();
    let (as_yaml, _) = piped("yaml", &input).ok();
    // As text: the order of the fields counts.
    assert_eq!(format!("{:#}\n", yaml(&as_yaml)[0]), as_json);
    assert_eq!(piped("json", &as_yaml).ok().0, as_json);
    let (patch, _) = piped("patch", &input).ok();
    let mut patched: Value = serde_json::from_str(&input).unwrap();
    json_patch::patch(&mut patched, &serde_json::from_str::<json_patch::Patch>(&patch).unwrap()).unwrap();
    assert_eq!(format!("{patched:#}\n"), as_json);
    assert_eq!(stderr.is_empty(), patch != "[]\n", "{stderr}");
}

// What is refused

#[rstest]
#[case::nothing("", "standard input holds no Pod")]
#[case::blanks("\n  \n", "standard input holds no Pod")]
#[case::only_comments("# a\n---\n# b\n", "standard input holds no Pod")]
#[case::an_empty_list("{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": []}", "standard input holds no Pod")]
#[case::a_deployment(
    "apiVersion: apps/v1\nkind: Deployment\n",
    "document 1 of standard input is a Deployment, not a Pod"
)]
#[case::a_task_run(
    "apiVersion: tekton.dev/v1\nkind: TaskRun\n",
    "document 1 of standard input is a TaskRun, not a Pod"
)]
#[case::another_version(
    "apiVersion: v2\nkind: Pod\n",
    "document 1 of standard input is a Pod of apiVersion v2 instead of v1, not a Pod"
)]
#[case::no_version(
    "kind: Pod\n",
    "document 1 of standard input is a Pod without an apiVersion instead of v1, not a Pod"
)]
#[case::no_kind("metadata: {}\n", "document 1 of standard input is without a kind, not a Pod")]
#[case::a_sequence("- a\n", "document 1 of standard input is a sequence, not a Pod")]
#[case::text("hello\n", "document 1 of standard input is a string, not a Pod")]
fn what_is_no_pod_is_refused(#[case] input: &str, #[case] error: &str) {
    let expected = format!("{error}\nGive it the Pod of a TaskRun, such as `kubectl get pod NAME -o yaml` prints.");
    assert_eq!(piped("yaml", input).error(), expected);
}

#[test]
fn one_that_is_no_pod_among_pods_keeps_all_output_back() {
    let error = piped("yaml", format!("{POD}---\n{PLAIN}\n---\napiVersion: v1\nkind: Service\n")).error();
    assert!(error.starts_with("document 3 of standard input is a Service, not a Pod\n"), "{error}");
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [json(PLAIN)[0], { "apiVersion": "v1", "kind": "Node" }] });
    let error = piped("yaml", format!("{PLAIN}{list}")).error();
    assert!(error.starts_with("document 2, item 2 of standard input is a Node, not a Pod\n"), "{error}");
}

#[rstest]
#[case::an_argument("--, \"on\"", "--, 7", ".spec.containers[0].args[6]: invalid type: integer `7`, expected a string")]
#[case::a_boolean_of_yaml_1_1(
    "--, \"on\"",
    "--, on",
    ".spec.containers[0].args[6]: invalid type: boolean `true`, expected a string"
)]
#[case::the_second_container(
    "image: nginx",
    "image: [nginx]",
    ".spec.containers[1].image: invalid type: sequence, expected a string"
)]
#[case::an_annotation(
    "  labels:",
    "  annotations: {a/b: 1}\n  labels:",
    ".metadata.annotations[\"a/b\"]: invalid type: integer `1`, expected a string"
)]
#[case::an_object_for_a_list(
    "volumes: []",
    "volumes: {a: {b: 1}}",
    ".spec.volumes: invalid type: map, expected a sequence"
)]
#[case::a_time("  labels:", "  creationTimestamp: yesterday\n  labels:", ".metadata.creationTimestamp: ")]
fn a_field_of_the_wrong_type_is_named(#[case] right: &str, #[case] wrong: &str, #[case] error: &str) {
    let actual = piped("yaml", format!("{PLAIN}\n---\n{}", POD.replacen(right, wrong, 1))).error();
    assert!(actual.starts_with(&format!("document 2 of standard input: field {error}")), "{actual}");
    assert!(actual.ends_with("\nCorrect that field: the API server would refuse this Pod too."), "{actual}");
}

#[rstest]
#[case::cut_off_json(&PLAIN[..60], "document 1 of standard input is not JSON: EOF while parsing ")]
#[case::cut_off_in_the_second(&format!("{PLAIN}\n{}", &PLAIN[..60]), "document 2 of standard input is not JSON: EOF while parsing ")]
#[case::text_behind_json(&format!("{PLAIN}}}"), "document 2 of standard input is not JSON: expected value at line 1 column ")]
#[case::bad_yaml("apiVersion: v1\nkind: Pod\n  spec: {}\n", "document 1 of standard input is not YAML: ")]
#[case::bad_yaml_in_the_second("a: 1\n---\nb: [1\n", "document 2 of standard input is not YAML: ")]
fn broken_syntax_is_located(#[case] input: &str, #[case] error: &str) {
    let actual = piped("yaml", input).error();
    assert!(actual.starts_with(error) && actual.contains("line ") && actual.contains("column "), "{actual}");
    assert!(actual.ends_with("\nCorrect it there. Was the file cut off?"), "{actual}");
}

#[rstest]
#[case::in_json("{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"spec\": {\"a\": 1, \"b\": 2, \"a\": 3}}", "JSON")]
#[case::in_yaml("apiVersion: v1\nkind: Pod\nspec:\n  a: 1\n  b: 2\n  a: 3\n", "YAML")]
fn a_key_that_stands_twice_is_refused(#[case] input: &str, #[case] format: &str) {
    let actual = piped("yaml", input).error();
    assert!(actual.starts_with(&format!("document 1 of standard input is not {format}: ")), "{actual}");
    assert!(actual.contains("duplicate") && actual.contains('a') && actual.contains("line "), "{actual}");
    assert!(actual.ends_with("\nRemove one of the two: which one holds is up to whoever reads it."), "{actual}");
}

#[test]
fn what_is_no_text_is_refused() {
    assert_eq!(
        piped("yaml", b"kind: \xff\xfe").error(),
        "standard input is not UTF-8: byte 6 is 0xff\nSave it as UTF-8 and try again."
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = inject(&["-f", "/nonexistent/pod.yaml"], "").error();
    assert!(error.starts_with("cannot read /nonexistent/pod.yaml: ") && error.contains("\nCheck the name "), "{error}");
}

#[test]
fn a_folder_is_no_file() {
    let error = inject(&["-f", env!("CARGO_MANIFEST_DIR")], "").error();
    assert!(
        error.starts_with("cannot read ") && error.ends_with("\nCheck that it is a file that you may read."),
        "{error}"
    );
}

// How it ends

struct Broken(io::ErrorKind);

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error_but_a_full_disk_is() {
    let args = Cli::parse_from(["inject", "-f", "-"]).args;
    let run = |kind| inject::run(&args, POD.as_bytes(), Broken(kind), io::sink());
    assert!(run(io::ErrorKind::BrokenPipe).is_ok());
    assert!(matches!(run(io::ErrorKind::StorageFull), Err(inject::Error::Write(_))));
}

#[test]
fn the_help_teaches_by_example() {
    let help = Cli::command().render_long_help().to_string();
    assert!(help.contains("kickstand inject -f pod.yaml | diff pod.yaml -"), "{help}");
    for flag in ["-f, --filename <FILE>", "-o, --output <FORMAT>", "--no-controller"] {
        assert!(help.contains(flag), "{help}");
    }
}
