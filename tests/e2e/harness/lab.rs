//! The cluster that is worked on, and what was changed in it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, ServiceAccount};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use super::injector::Injector;
use super::istio::{self, Istio};
use super::scene::Skip;
use super::{nodes, tekton};
use crate::cli::{Format, Options};

/// Label of every namespace made here; its value names the run.
pub(crate) const LABEL: &str = "kickstand-e2e";
/// The node of the cluster of `tests/cluster`.
const TEST_CLUSTER_ADDRESS: &str = "10.99.0.1";

/// The cluster, and the settings.
pub(crate) struct Lab {
    pub(crate) client: Client,
    pub(crate) options: Options,
    pub(crate) images: Images,
    /// This program's injecting webhook, or why there is none.
    pub(crate) injector: Result<Injector, String>,
    pub(crate) istio: Istio,
    /// Tells this run's namespaces from those of another.
    run: String,
    namespaces: AtomicU32,
}

/// The images by which pods are run here.
#[derive(Clone)]
pub(crate) struct Images {
    pub(crate) kickstand: String,
    pub(crate) nop: String,
    pub(crate) busybox: String,
}

impl Lab {
    /// Connects, and refuses a cluster that must not be touched.
    pub(crate) async fn open(options: Options) -> Result<Self> {
        let Some(path) = &options.kubeconfig else {
            bail!(
                "no cluster given\n  Next: tests/e2e/run test      on the cluster of tests/cluster\n        KUBECONFIG=FILE e2e --existing test      on one of your own"
            );
        };
        let read = Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
            .await
            .with_context(|| format!("cannot use {}", path.display()))?;
        // Many watches at a time; none of them may look dead because nothing happens.
        config.read_timeout = None;
        let client = Client::try_from(config)?;
        let nodes = Api::<Node>::all(client.clone())
            .list(&ListParams::default().labels(&format!("!{LABEL}")))
            .await
            .with_context(|| format!("the cluster of {} does not answer", path.display()))?;
        let is_test_cluster = nodes.items.len() == 1 && addresses(&nodes.items[0]).any(|at| at == TEST_CLUSTER_ADDRESS);
        ensure!(
            options.existing || is_test_cluster,
            "the cluster of {} is not the one of tests/cluster\n  If Kickstand is to be installed there, and Tekton's feature flags changed for a while: add --existing",
            path.display()
        );
        let images = Images::of(&options)?;
        let run = format!("{:x}", kickstand::clock::now().as_millisecond() & 0xff_ffff);
        let injector = match (&options.injector_url, options.existing) {
            (Some(url), _) => Injector::start(url).await,
            (None, false) => Injector::start(&format!("https://{TEST_CLUSTER_ADDRESS}:0")).await,
            (None, true) => Err("the API server must reach this program: give it --injector-url".to_owned()),
        };
        let istio = Istio::default();
        let lab = Self { client, options, images, injector, istio, run, namespaces: AtomicU32::new(0) };
        lab.refuse_running_task_runs().await?;
        super::install::refuse_somebody_elses(&lab).await?;
        nodes::leave(&lab.client).await?;
        tekton::remember(&lab).await?;
        if let Ok(injector) = &lab.injector {
            injector.register(&lab.client).await?;
        }
        Ok(lab)
    }

    /// Puts back what was changed. Says what it could not, and goes on.
    pub(crate) async fn close(&self) {
        if let Err(error) = tekton::restore(self).await {
            eprintln!("e2e: Tekton's settings are not restored: {error:#}");
        }
        if let Err(error) = istio::restore(self).await {
            eprintln!("e2e: Istio's settings are not restored: {error:#}");
        }
        if let Err(error) = nodes::leave(&self.client).await {
            eprintln!("e2e: Nodes labelled {LABEL} are left: {error:#}");
        }
        if let Ok(injector) = &self.injector {
            injector.unregister(&self.client).await;
        }
        if !self.options.keep {
            if let Err(error) = self.delete_namespaces().await {
                eprintln!("e2e: namespaces labelled {LABEL} are left: {error:#}");
            }
            // On the test cluster it may stay: the next run upgrades it.
            if self.options.existing
                && !self.options.no_install
                && !self.options.without_kickstand
                && let Err(error) = super::install::uninstall(self).await
            {
                eprintln!("e2e: Kickstand is left installed: {error:#}");
            }
        }
    }

    /// The cluster of `tests/cluster`: its clock, network and processes are this machine's.
    pub(crate) fn is_local(&self) -> bool {
        !self.options.existing
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.options.output == Format::Json
    }

    /// Makes a namespace that pods can be created in at once.
    pub(crate) async fn namespace(&self, name: &str, inject: Option<bool>) -> Result<String> {
        let inject = inject.map(|inject| if inject { "true" } else { "false" });
        let labels = inject.map(|inject| (kickstand::pod::contract::INJECT, inject));
        self.namespace_with(name, labels.as_slice()).await
    }

    /// The same, with these labels.
    pub(crate) async fn namespace_with(&self, name: &str, with: &[(&str, &str)]) -> Result<String> {
        let name = format!("e2e-{}x{}-{name}", self.run, self.namespaces.fetch_add(1, Ordering::Relaxed));
        let mut labels = json!({ LABEL: self.run });
        for (key, value) in with {
            labels[*key] = json!(value);
        }
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } }))?;
        let namespaces = Api::<Namespace>::all(self.client.clone());
        namespaces.create(&PostParams::default(), &namespace).await.with_context(|| format!("namespace {name}"))?;
        // Tekton refuses a TaskRun whose ServiceAccount is not there yet, and the kubelet a pod without the CA.
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &name);
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), &name);
        for _ in 0..600 {
            if accounts.get_opt("default").await?.is_some() && maps.get_opt("kube-root-ca.crt").await?.is_some() {
                return Ok(name);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("namespace {name} has no ServiceAccount after a minute: does the controller manager run?")
    }

    pub(crate) async fn label_namespace(&self, name: &str, inject: bool) -> Result<()> {
        let patch = json!({ "metadata": { "labels": { kickstand::pod::contract::INJECT: inject.to_string() } } });
        let namespaces = Api::<Namespace>::all(self.client.clone());
        namespaces.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub(crate) async fn delete_namespace(&self, name: &str) -> Result<()> {
        Api::<Namespace>::all(self.client.clone()).delete(name, &DeleteParams::background()).await?;
        Ok(())
    }

    /// All of this run's, and waits a while, so that pods do not run into whatever comes next.
    async fn delete_namespaces(&self) -> Result<()> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{LABEL}={}", self.run));
        for _ in 0..90 {
            let left = namespaces.list(&ours).await?;
            if left.items.is_empty() {
                return Ok(());
            }
            for namespace in left {
                if namespace.metadata.deletion_timestamp.is_none() {
                    self.delete_namespace(&namespace.metadata.name.unwrap_or_default()).await?;
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        bail!("they take their time")
    }

    pub(crate) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) fn task_runs(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &task_run_resource())
    }

    /// [`Skip`] on a Kubernetes older than 1.`minor`.
    pub(crate) async fn needs_kubernetes(&self, minor: u32) -> Result<()> {
        let version = self.client.apiserver_version().await?;
        let number: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
        if number.parse::<u32>().is_ok_and(|its| its < minor) {
            return Err(Skip(format!("it needs Kubernetes 1.{minor}, this is {}", version.git_version)).into());
        }
        Ok(())
    }

    async fn refuse_running_task_runs(&self) -> Result<()> {
        let all = Api::<DynamicObject>::all_with(self.client.clone(), &task_run_resource());
        let list = all.list(&ListParams::default()).await.context("cannot list TaskRuns: is Tekton installed?")?;
        let running: Vec<String> = list
            .into_iter()
            .filter(|run| {
                run.data.pointer("/status/completionTime").is_none() && run.metadata.deletion_timestamp.is_none()
            })
            .map(|run| {
                format!("{}/{}", run.metadata.namespace.unwrap_or_default(), run.metadata.name.unwrap_or_default())
            })
            .collect();
        ensure!(
            running.is_empty() || self.options.force || self.is_local(),
            "{} TaskRuns are running there, such as {}: Tekton's feature flags would change under them\n  Wait for them, or add --force",
            running.len(),
            running[0]
        );
        Ok(())
    }
}

impl Images {
    fn of(options: &Options) -> Result<Self> {
        let image = |given: &Option<String>, flag: &str, local: &str| match given {
            Some(image) => Ok(image.clone()),
            None if !options.existing => Ok(local.to_owned()),
            None => bail!("on a cluster of your own, say with {flag} which image its nodes can pull"),
        };
        Ok(Self {
            kickstand: image(&options.kickstand_image, "--kickstand-image", "localhost/kickstand:dev")?,
            nop: image(&options.nop_image, "--nop-image", "localhost/kickstand-nop:dev")?,
            busybox: image(&options.busybox_image, "--busybox-image", "localhost/busybox:dev")?,
        })
    }
}

fn addresses(node: &Node) -> impl Iterator<Item = &str> {
    node.status.iter().flat_map(|status| status.addresses.iter().flatten()).map(|address| address.address.as_str())
}

pub(crate) fn task_run_resource() -> ApiResource {
    ApiResource {
        group: "tekton.dev".into(),
        version: "v1".into(),
        api_version: "tekton.dev/v1".into(),
        kind: "TaskRun".into(),
        plural: "taskruns".into(),
    }
}
