//! The command line and the environment become one checked [`Command`]; nobody else reads either.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::doctor;
use crate::inject::InjectArgs;
use crate::pod::known::Known;
use crate::pod::versions::Version;
use crate::table::known_sidecars;

/// Holds a Tekton TaskRun's first step until every sidecar is ready, and brings the sidecars to a stop when the last step
/// is done.
///
/// In a cluster the Helm chart runs `webhook` and `controller`. On your own machine, `inject` shows what the webhook would
/// make of a pod, and `doctor` asks a cluster whether its pods come out as they should.
#[derive(Debug, Parser)]
#[command(name = "kickstand", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Cli {
    /// What to run.
    #[command(subcommand)]
    pub command: Command,
}

/// A subcommand with its settings.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve the admission webhook: gate the first step of TaskRun pods that have sidecars
    Webhook(WebhookArgs),
    /// Run the controller: open gates, stop sidecars, keep the webhook's certificates
    Controller(ControllerArgs),
    /// Show offline what the webhook makes of a pod
    Inject(InjectArgs),
    /// Try, by dry runs, whether pods of a namespace come out as they should, and say what to do if not
    ///
    /// Has the API server make a pod like a TaskRun's several times, as a dry run (nothing is stored, no image is pulled), and
    /// says whether Kickstand's webhook is called, the first step is held, and the declared sidecar is native; and if not, why,
    /// as far as the webhook, the controller's Lease and the webhook configurations tell.
    ///
    /// It needs the right to create pods in that namespace. What else it may not read, it does without.
    Doctor(DoctorArgs),
    /// Open every gate that is still shut, before Kickstand is removed or in an emergency
    Release(ReleaseArgs),
}

/// As the chart names them: the one that gates first, so that it is filled in first, and deleted first.
const WEBHOOK_CONFIGURATIONS: &str = "zz-kickstand,0-kickstand";

/// How to log.
#[derive(Clone, Debug, Args)]
pub struct LogArgs {
    /// One JSON object a line, or text for people
    #[arg(long, value_enum, default_value_t = LogFormat::Text, env = "KICKSTAND_LOG_FORMAT")]
    pub log_format: LogFormat,
    /// A level, or directives such as `info,kickstand::controller=debug`
    #[arg(long, default_value = "info", env = "KICKSTAND_LOG_LEVEL", value_name = "FILTER")]
    pub log_level: String,
}

/// A log's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum LogFormat {
    Json,
    Text,
}

/// When sidecars become native.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Native {
    Auto,
    Off,
}

/// `kickstand webhook`.
#[derive(Debug, Args)]
pub struct WebhookArgs {
    /// Where to serve HTTPS to the API server
    #[arg(long, default_value = "0.0.0.0:10250", value_name = "ADDRESS:PORT")]
    pub listen_address: SocketAddr,
    /// Where to serve /livez, /readyz and /metrics, over plain HTTP
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS:PORT")]
    pub admin_address: SocketAddr,
    /// A folder with tls.crt and tls.key; read again when they change
    #[arg(long, default_value = "/etc/kickstand/tls", value_name = "FOLDER")]
    pub tls_dir: PathBuf,
    /// The namespace that Kickstand runs in
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub namespace: String,
    /// The Lease that shows whether a controller is alive: without one, no pod is gated
    #[arg(long, default_value = "kickstand-controller", value_name = "NAME")]
    pub lease_name: String,
    /// Let the kubelet end sidecars where that is safe (`auto`), or never (`off`)
    #[arg(long, value_enum, default_value_t = Native::Auto, value_name = "WHEN")]
    pub native: Native,
    /// Where no classic sidecar is left, take Tekton's own wait out of the first step: a second saved
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub skip_tekton_wait: bool,
    /// A table of sidecars (JSON) that comes before the built-in one; the same file as the controller's
    #[arg(long, value_name = "FILE", value_parser = known_sidecars)]
    pub known_sidecars: Option<Known>,
    /// Refuse a larger request (413). A pod that the API server can store is smaller by far
    #[arg(long, default_value_t = 4 << 20, value_name = "BYTES")]
    pub max_body_bytes: usize,
    /// Refuse more reviews at a time (503); the API server then admits the pods ungated
    #[arg(long, default_value_t = 256, value_name = "COUNT")]
    pub max_concurrent_reviews: usize,
    /// Give up on a review after this long; less than the webhook configuration's timeoutSeconds
    #[arg(long, default_value = "4s", value_parser = duration, value_name = "DURATION")]
    pub review_deadline: Duration,
    /// On SIGTERM, serve on for this long while endpoints forget this pod
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub drain_grace: Duration,
    /// On SIGTERM, close what is still open after this long
    #[arg(long, default_value = "20s", value_parser = duration, value_name = "DURATION")]
    pub drain_deadline: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub log: LogArgs,
}

/// `kickstand controller`.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    /// Where to serve /livez, /readyz and /metrics, over plain HTTP
    #[arg(long, default_value = "0.0.0.0:8080", value_name = "ADDRESS:PORT")]
    pub admin_address: SocketAddr,
    /// The namespace that Kickstand runs in
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    pub namespace: String,
    /// This process among its replicas: the pod's name
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: String,
    /// The Lease by which one replica leads; the webhook reads it too
    #[arg(long, default_value = "kickstand-controller", value_name = "NAME")]
    pub lease_name: String,
    /// The image that a stopped sidecar runs
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    pub nop_image: String,
    /// How the names of Tekton's own nop images start: what runs one has been stopped by Tekton
    #[arg(long, value_delimiter = ',', value_name = "PREFIX,…")]
    pub tekton_nop_images: Vec<String>,
    /// Look after these namespaces alone; without it, after the whole cluster
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub watch_namespaces: Vec<String>,
    /// A JSON table of sidecars, in the form of src/pod/known-sidecars.json, whose rows come before those of this build
    #[arg(long, value_name = "FILE", value_parser = known_sidecars)]
    pub known_sidecars: Option<Known>,
    /// Let pods have native sidecars only if every node and the API server are at least of this version; 1.29 or later.
    /// Since 1.33 nothing can switch native sidecars off
    #[arg(long, default_value = "1.33", value_parser = Version::minimum, value_name = "VERSION")]
    pub native_minimum: Version,
    /// Make and renew the webhook's certificates, and fill its caBundle
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, value_name = "true|false")]
    pub manage_certificates: bool,
    /// The webhook configurations whose caBundles are kept; one that is not there is done without
    #[arg(long, value_delimiter = ',', default_value = WEBHOOK_CONFIGURATIONS, value_name = "NAME,…")]
    pub webhook_configuration: Vec<String>,
    /// The Service that the certificate is made out to
    #[arg(long, default_value = "kickstand-webhook", value_name = "NAME")]
    pub webhook_service: String,
    /// The Secret that holds the CA
    #[arg(long, default_value = "kickstand-ca", value_name = "NAME")]
    pub ca_secret: String,
    /// The Secret that holds the webhook's certificate, mounted by its pods
    #[arg(long, default_value = "kickstand-webhook-tls", value_name = "NAME")]
    pub tls_secret: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub log: LogArgs,
}

/// `kickstand release`.
#[derive(Debug, Args)]
#[command(after_help = "EXAMPLE\n  kickstand release --delete-webhook    # what `helm uninstall` runs first")]
pub struct ReleaseArgs {
    /// Delete the webhook configurations first, so that no new pod is gated
    #[arg(long)]
    pub delete_webhook: bool,
    /// Their names
    #[arg(long, value_delimiter = ',', default_value = WEBHOOK_CONFIGURATIONS, value_name = "NAME,…")]
    pub webhook_configuration: Vec<String>,
    /// Release these namespaces alone; without it, the whole cluster
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub watch_namespaces: Vec<String>,
    /// Give up after this long, and name the pods that are left
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "DURATION")]
    pub deadline: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub log: LogArgs,
}

/// `kickstand doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// The namespace to try: one that TaskRuns run in
    #[arg(short, long, value_name = "NAME", value_parser = namespace)]
    pub namespace: String,
    /// What to write
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    pub output: doctor::Output,
    /// An annotation for the pod, as your TaskRuns have it; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = annotation)]
    pub annotate: Vec<(String, String)>,
    /// The image that the pod's containers name, where a policy wants certain ones; it is never pulled
    #[arg(long, value_name = "IMAGE", default_value = "kickstand.dev/never-run", value_parser = image)]
    pub image: String,
    /// How many dry runs: the webhook has replicas
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub times: u8,
    /// Try again for so long what may pass by itself, such as a webhook that was installed just now
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "DURATION")]
    pub wait: Duration,
    /// The namespace that Kickstand runs in
    #[arg(long, value_name = "NAME", default_value = "kickstand-system", value_parser = namespace)]
    pub kickstand_namespace: String,
    /// The controller's Lease there
    #[arg(long, default_value = "kickstand-controller", value_name = "NAME", value_parser = namespace)]
    pub lease_name: String,
}

const DOCTOR_EXAMPLES: &str = "\
Exit code: 0 all well (or warnings only), 1 an error was found, 2 it could not be tried.

Examples:
  # Would a TaskRun in my-ci be held until its sidecar is ready?
  kickstand doctor --namespace my-ci

  # The same for runs that Vault injects into, for a script
  kickstand doctor -n my-ci --annotate vault.hashicorp.com/agent-inject=true -o json | jq .ok

  # What `helm test` runs, in the cluster
  helm test kickstand -n kickstand-system --logs";

impl Command {
    /// How this command is to log; `None` for one that only prints.
    #[must_use]
    pub fn log(&self) -> Option<&LogArgs> {
        match self {
            Self::Webhook(args) => Some(&args.log),
            Self::Controller(args) => Some(&args.log),
            Self::Release(args) => Some(&args.log),
            Self::Inject(_) | Self::Doctor(_) => None,
        }
    }
}

/// `5s`, `2m`; not negative.
fn duration(text: &str) -> Result<Duration, String> {
    let read: jiff::SignedDuration =
        text.parse().map_err(|_| "not a duration: write it as 500ms, 5s or 2m".to_owned())?;
    Duration::try_from(read).map_err(|_| "a duration cannot be negative".to_owned())
}

/// A namespace's name (or another that Kubernetes has in a path).
fn namespace(text: &str) -> Result<String, String> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if text.is_empty() || text.len() > 63 || !text.chars().all(is_inner) || text.starts_with('-') || text.ends_with('-')
    {
        return Err("not a name: at most 63 of a-z, 0-9 and '-', which is neither first nor last".to_owned());
    }
    Ok(text.to_owned())
}

/// `vault.hashicorp.com/agent-inject=true`.
fn annotation(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("not an annotation: write it as KEY=VALUE".to_owned()),
    }
}

/// An image's name, as a runtime would take it: `[host[:port]/]path[:tag][@digest]`. One that is refused only when the
/// first sidecar is to be stopped is found out too late.
fn image(text: &str) -> Result<String, String> {
    let no_image = |why: &str| Err(format!("not the name of an image such as registry.example/kickstand-nop:1: {why}"));
    let is_any_of = |text: &str, also: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
    };
    let (name, digest) = text.split_once('@').map_or((text, None), |(name, digest)| (name, Some(digest)));
    // A colon before the last slash is a port's.
    let path_at = name.rfind('/').unwrap_or_default();
    let (path, tag) = match name[path_at..].rfind(':') {
        Some(at) => (&name[..path_at + at], Some(&name[path_at + at + 1..])),
        None => (name, None),
    };
    let (host, path) = match path.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (Some(host), path),
        _ => (None, path),
    };
    if host.is_some_and(|host| !is_any_of(host, ".-:[]")) {
        return no_image("its host has a character that hosts have not");
    }
    if !path.split('/').all(|part| is_any_of(part, "._-") && !part.contains(|c: char| c.is_ascii_uppercase())) {
        return no_image("its path has an empty part, or one of other characters than a-z, 0-9, '.', '_' and '-'");
    }
    if tag.is_some_and(|tag| !is_any_of(tag, "._-") || tag.len() > 128) {
        return no_image("its tag is empty, too long, or of other characters than letters, digits, '.', '_' and '-'");
    }
    if digest.is_some_and(|digest| {
        digest
            .split_once(':')
            .is_none_or(|(kind, hex)| !is_any_of(kind, "+.-_") || hex.len() < 32 || !is_any_of(hex, ""))
    }) {
        return no_image("its digest is not like sha256:0123…");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[rstest::rstest]
    #[case("5s", Ok(Duration::from_secs(5)))]
    #[case("2m", Ok(Duration::from_mins(2)))]
    #[case("-1s", Err("a duration cannot be negative".to_owned()))]
    #[case("5", Err("not a duration: write it as 500ms, 5s or 2m".to_owned()))]
    fn a_duration_is_read_or_explained(#[case] text: &str, #[case] expected: Result<Duration, String>) {
        assert_eq!(duration(text), expected);
    }

    #[test]
    fn a_table_of_sidecars_is_read_or_explained_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("table.json");
        let file = file.to_str().unwrap();
        let read = |json: &str| {
            std::fs::write(file, json).unwrap();
            known_sidecars(file)
        };
        assert!(known_sidecars(file).unwrap_err().starts_with("cannot read it: "));
        let known = read(r#"[{ "name": "ours", "containers": ["mesh"] }]"#).unwrap();
        assert_eq!(known.rows().len(), Known::builtin().rows().len() + 1);
        assert_eq!(known.rows()[0].name, "ours");
        let error = read("[\n  { \"name\": \"ours\", \"container\": [] }\n]").unwrap_err();
        assert!(error.contains("unknown field `container`") && error.contains("line 2"), "{error}");
        let arguments =
            ["kickstand", "controller", "--namespace=a", "--identity=b", "--nop-image=nop", "--known-sidecars", file];
        let error = Cli::try_parse_from(arguments).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(file) && error.to_string().contains("line 2"), "{error}");
    }

    #[rstest::rstest]
    #[case(&["-n", "ci", "--annotate", "a.example/b=c=d", "--annotate=e="], Ok(vec![("a.example/b", "c=d"), ("e", "")]))]
    #[case(&["-n", "ci", "--annotate", "a.example/b"], Err("write it as KEY=VALUE"))]
    #[case(&["-n", "../pods"], Err("not a name"))]
    #[case(&["-n", "ci", "--times=0"], Err("--times"))]
    fn what_the_doctor_is_to_try_is_checked(
        #[case] arguments: &[&str],
        #[case] expected: Result<Vec<(&str, &str)>, &str>,
    ) {
        match (Cli::try_parse_from(["kickstand", "doctor"].iter().chain(arguments)), expected) {
            (Ok(Cli { command: Command::Doctor(args) }), Ok(expected)) => {
                let read: Vec<_> = args.annotate.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
                assert_eq!(read, expected);
            }
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (read, expected) => panic!("{read:?} is not {expected:?}"),
        }
    }

    #[rstest::rstest]
    #[case("kickstand-nop")]
    #[case("localhost/kickstand-nop:dev")]
    #[case("localhost:5000/a/kickstand__nop:0.1.0-rc.1")]
    #[case(
        "registry.example:443/kickstand-nop@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    )]
    #[case("[::1]:5000/nop:Tag_1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")]
    fn the_name_of_an_image_is_taken(#[case] text: &str) {
        assert_eq!(image(text), Ok(text.to_owned()));
    }

    #[rstest::rstest]
    #[case::blank("bad image", "path")]
    #[case::empty("", "path")]
    #[case::upper_case("registry.example/Nop", "path")]
    #[case::empty_part("registry.example//nop", "path")]
    #[case::scheme("https://registry.example/nop", "path")]
    #[case::no_tag("registry.example/nop:", "tag")]
    #[case::no_digest("registry.example/nop@sha256", "digest")]
    #[case::short_digest("registry.example/nop@sha256:0123", "digest")]
    #[case::a_line_break("nop:1\n", "tag")]
    #[case::host("regis_try.example:5000/nop", "host")]
    fn what_no_runtime_could_pull_is_refused_with_its_reason(#[case] text: &str, #[case] part: &str) {
        assert!(image(text).unwrap_err().contains(&format!("its {part}")), "{:?}", image(text));
    }
}
