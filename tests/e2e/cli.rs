//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Kickstand on a real cluster with a real Tekton: its tests, a demonstration, a benchmark.
///
/// Give it a cluster by KUBECONFIG: the one of tests/cluster (inside `tests/cluster/cluster exec`, which is what
/// tests/e2e/run does for you), or with --existing one of your own that has Tekton, such as kind or staging. It installs
/// Kickstand there by its chart, sets Tekton's feature flags group by group, and puts them back in the end.
#[derive(Debug, Parser)]
#[command(name = "e2e", max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to do (default: test)
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) options: Options,
}

const EXAMPLES: &str = "\
EXAMPLES
  e2e                            all tests
  e2e list                       what there is to be seen, without a cluster
  e2e test injected              the tests whose name or group has this word
  e2e test --keep 'exits one'    look at the namespace afterwards
  e2e demo                       TaskRuns with and without Kickstand, as timelines
  e2e bench                      latencies beside Tekton's own and the kubelet's floor

ON YOUR OWN CLUSTER
  e2e --existing --kickstand-image REGISTRY/kickstand:TAG --nop-image REGISTRY/kickstand-nop:TAG \\
      --busybox-image busybox:1.37 test

EXIT CODE
  0 all was as expected, 1 something was not, 2 it could not be tried";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the tests: exit code 1 if one fails, after all have run
    Test {
        /// Only those whose name or group has one of these words (default: all)
        filter: Vec<String>,
    },
    /// Run the TaskRuns of examples/ with and without Kickstand, and print a timeline of each
    Demo(DemoArgs),
    /// Measure gate and stop latency, the webhook's answers, and memory; asserts nothing
    Bench(BenchArgs),
    /// List the tests by group, without a cluster
    List {
        /// Only those whose name or group has one of these words (default: all)
        filter: Vec<String>,
    },
}

impl Default for Command {
    fn default() -> Self {
        Self::Test { filter: Vec::new() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Only the examples whose file name has one of these words (default: all)
    pub(crate) filter: Vec<String>,
    /// How long to watch a pod that does not end
    #[arg(long, default_value_t = 45, value_name = "SECONDS")]
    pub(crate) patience: u64,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// How many runs one after another, and how many at once
    #[arg(long, default_value_t = 10, value_name = "COUNT")]
    pub(crate) runs: usize,
    /// How many reviews to ask of the webhook
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    pub(crate) reviews: usize,
    /// How many TaskRun pods to hold while memory is read
    #[arg(long, default_value_t = 100, value_name = "COUNT")]
    pub(crate) pods: usize,
    /// Only these parts (default: all)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,…")]
    pub(crate) only: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The whole way of a TaskRun: no sidecar, Tekton's own, classic, native; Istio where it is installed
    Strategies,
    /// Gate and stop latency
    Latency,
    /// The webhook's answers
    Webhook,
    /// Resident memory
    Memory,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct Options {
    /// Credentials of the cluster; never guessed
    #[arg(long, env = "KUBECONFIG", global = true, value_name = "FILE", hide_env_values = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// It is a cluster of your own, not the one of tests/cluster
    #[arg(long, global = true)]
    pub(crate) existing: bool,
    /// Go on although TaskRuns are running there (Tekton's flags will change under them)
    #[arg(long, global = true)]
    pub(crate) force: bool,
    /// Leave the namespaces of failed tests, and do not take Kickstand away
    #[arg(long, global = true)]
    pub(crate) keep: bool,
    /// Test the Kickstand that is installed there, instead of installing the chart
    #[arg(long, global = true)]
    pub(crate) no_install: bool,
    /// Install nothing, and expect nothing to answer: shows that the tests fail without Kickstand
    #[arg(long, global = true, conflicts_with = "no_install")]
    pub(crate) without_kickstand: bool,
    /// The helm program
    #[arg(long, env = "HELM", default_value = "helm", global = true, value_name = "PATH")]
    pub(crate) helm: PathBuf,
    /// The chart to install
    #[arg(long, default_value = "charts/kickstand", global = true, value_name = "FOLDER")]
    pub(crate) chart: PathBuf,
    /// Kickstand's image (default on the test cluster: localhost/kickstand:dev)
    #[arg(long, global = true, value_name = "IMAGE")]
    pub(crate) kickstand_image: Option<String>,
    /// The nop image (default on the test cluster: localhost/kickstand-nop:dev)
    #[arg(long, global = true, value_name = "IMAGE")]
    pub(crate) nop_image: Option<String>,
    /// An image with busybox: steps and sidecars run it (default on the test cluster: localhost/busybox:dev)
    #[arg(long, global = true, value_name = "IMAGE")]
    pub(crate) busybox_image: Option<String>,
    /// Where the API server reaches this program, which serves an injecting webhook; the port is listened on.
    /// Default on the test cluster: the address of its network
    #[arg(long, global = true, value_name = "https://ADDRESS:PORT")]
    pub(crate) injector_url: Option<String>,
    /// The API server's audit log, for what it says of webhooks; without it those tests are skipped
    #[arg(long, env = "KICKSTAND_AUDIT_LOG", global = true, value_name = "FILE", hide_env_values = true)]
    pub(crate) audit_log: Option<PathBuf>,
    /// Tests of a group that run side by side
    #[arg(long, default_value_t = 8, global = true, value_name = "COUNT")]
    pub(crate) at_once: usize,
    /// How to print results; progress goes to stderr
    #[arg(short, long, value_enum, default_value_t = Format::Text, global = true)]
    pub(crate) output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}
