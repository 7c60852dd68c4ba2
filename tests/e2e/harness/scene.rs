//! What a case is given: a namespace of its own, a record of it, and the verbs of a user.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::{AsyncReadExt as _, FutureExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{LogParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::injector::Injector;
use super::istio;
use super::lab::Lab;
use super::pods::PodExt;
use super::record::{Condition, Record};
use super::taskrun::TaskRun;

/// How long to wait for what must come, before giving up. Generous: the machine may be small and busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// A run failed because a step did: Tekton's words for it, the older one last.
pub(crate) const STEP_FAILED: &[&str] = &["StepFailed", "Failed"];

/// A case that cannot be tried here, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Skip(pub(crate) String);

/// A case's place.
pub(crate) struct Scene<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) namespace: String,
    pub(crate) record: Record,
    notes: Mutex<Vec<String>>,
}

impl<'a> Scene<'a> {
    pub(crate) fn new(lab: &'a Lab, namespace: String) -> Self {
        let record = Record::start(&lab.client, &namespace);
        Self { lab, namespace, record, notes: Mutex::default() }
    }

    /// Another namespace beside it; its name begins with the case's.
    pub(crate) async fn beside(&self, inject: Option<bool>) -> Result<Scene<'a>> {
        let (_, own) = self.namespace.split_at("e2e-".len());
        let (_, own) = own.split_once('-').context("a namespace's name")?;
        let namespace = self.lab.namespace(&format!("{own}-beside"), inject).await?;
        Ok(Scene::new(self.lab, namespace))
    }

    /// What a step says whose first act is a call through Istio's mesh; it exits 1 if there is no answer.
    pub(crate) async fn call_through_the_mesh(&self) -> Result<String> {
        Ok(format!("timeout 5 wget -q -O - {} || exit 1", istio::service(self.lab).await?))
    }

    /// A number or a fact to be shown with the result.
    pub(crate) fn note(&self, text: impl Into<String>) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(text.into());
    }

    pub(crate) fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The injecting webhook; without one, the case is skipped.
    pub(crate) fn injector(&self) -> Result<&Injector> {
        self.lab.injector.as_ref().map_err(|why| Skip(why.clone()).into())
    }

    pub(crate) async fn start(&self, run: &TaskRun) -> Result<Run<'_>> {
        if run.wants_injector() {
            self.injector()?;
        }
        self.start_manifest(run.manifest(&self.lab.images)).await
    }

    pub(crate) async fn start_manifest(&self, manifest: Value) -> Result<Run<'_>> {
        let object = serde_json::from_value(manifest)?;
        let runs = self.lab.task_runs(&self.namespace);
        let made = runs.create(&PostParams::default(), &object).await.context("creating a TaskRun")?;
        Ok(Run { scene: self, name: made.metadata.name.unwrap_or_default() })
    }

    /// Waits until something holds of a pod, and returns the pod as it was then.
    pub(crate) async fn wait_for_pod(&self, pod: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Result<Arc<Pod>> {
        self.record
            .wait_for(&format!("{what} (pod {pod})"), PATIENCE, |seen| {
                seen.history(pod).find(|(_, _, pod)| holds(pod)).map(|(_, _, pod)| pod.clone())
            })
            .await
    }

    /// Waits until every container of a pod runs while its gate is shut.
    pub(crate) async fn wait_until_held(&self, pod: &str) -> Result<Arc<Pod>> {
        let held = self.wait_for_pod(pod, "it is held: all its containers run, and the gate is shut", |pod| {
            pod.gate_opened().is_none() && pod.containers().iter().all(|it| pod.is_running(&it.name))
        });
        let pod = held.await?;
        ensure!(pod.is_gated(), "expected a gate in the first step of pod {}, there is none", pod.name());
        Ok(pod)
    }

    /// Waits until its gate opens; at once an error if it has none.
    pub(crate) async fn wait_until_open(&self, pod: &str) -> Result<Arc<Pod>> {
        let created = self.wait_for_pod(pod, "it is there", |_| true).await?;
        ensure!(created.is_gated(), "expected a gate in the first step of pod {pod}, there is none");
        self.wait_for_pod(pod, "its gate opens", |pod| pod.gate_opened().is_some()).await
    }

    /// The pod was gated, its gate opened after all of these were ready, and its first step started after that.
    pub(crate) fn was_held_until_ready(&self, pod: &str, sidecars: &[&str]) -> Result<()> {
        let ready = sidecars.iter().map(|name| self.first_ready(pod, name)).collect::<Result<Vec<usize>>>()?;
        self.was_held_until(pod, ready.into_iter().max().unwrap_or_default())
    }

    /// The same, after a place in the record.
    pub(crate) fn was_held_until(&self, pod: &str, place: usize) -> Result<()> {
        self.record.look(|seen| {
            let last = seen.pod(pod).with_context(|| format!("pod {pod} was never seen"))?;
            ensure!(last.is_gated(), "expected a gate in the first step of pod {pod}, there is none");
            let opened = last.gate_opened().with_context(|| format!("expected the gate of pod {pod} to be open"))?;
            let (open, _) = seen.first(pod, |pod| pod.gate_opened().is_some()).context("open, but never seen so")?;
            ensure!(place <= open, "the gate of pod {pod} opened before all that it should wait for had happened");
            let first = *last.steps().first().context("a pod without steps")?;
            let started = last.step_started(first).with_context(|| {
                let ended = last.ended(first).map(|it| it.message.clone().unwrap_or_default());
                format!("no StartedAt of {first} in its termination message: {ended:?}")
            })?;
            // Two clocks of one machine, or of two.
            ensure!(
                !self.lab.is_local() || opened.as_millisecond() <= started.as_millisecond(),
                "{first} started at {started}, before its gate opened at {opened}"
            );
            Ok(())
        })
    }

    /// The place in the record at which a container was first seen ready.
    pub(crate) fn first_ready(&self, pod: &str, container: &str) -> Result<usize> {
        let ready = self.record.look(|seen| seen.first(pod, |pod| pod.is_ready(container)));
        ready.map(|(place, _)| place).with_context(|| format!("{container} of pod {pod} was never seen ready"))
    }

    /// Nobody but the kubelet has ended this pod's sidecars.
    pub(crate) fn was_not_stopped(&self, pod: &str) -> Result<()> {
        self.record.look(|seen| {
            let stopped = kickstand::pod::contract::Reason::SidecarsStopped.as_str();
            let mut events = seen.events(pod);
            ensure!(
                !events.any(|(_, event)| event.reason.as_deref() == Some(stopped)),
                "expected nobody to stop the sidecars of pod {pod}, there is an Event {stopped}"
            );
            let images = |pod: &Pod| {
                let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
                let all = init.chain(pod.containers());
                all.map(|it| (it.name.clone(), it.image.clone())).collect::<Vec<_>>()
            };
            let first = seen.history(pod).next().map(|(_, _, pod)| images(pod));
            let last = seen.pod(pod).map(|pod| images(&pod));
            ensure!(first == last, "expected the images of pod {pod} to stay as they were: {first:?}, then {last:?}");
            Ok(())
        })
    }

    /// Waits for an Event of ours on a pod, and returns its message.
    pub(crate) async fn event(&self, pod: &str, reason: kickstand::pod::contract::Reason) -> Result<String> {
        let what = format!("an Event {} on pod {pod}", reason.as_str());
        self.record
            .wait_for(&what, PATIENCE, |seen| {
                let mut events = seen.events(pod).map(|(_, event)| event);
                let event = events.find(|event| event.reason.as_deref() == Some(reason.as_str()))?;
                Some((event.type_.clone().unwrap_or_default(), event.message.clone().unwrap_or_default()))
            })
            .await
            .and_then(|(kind, message)| {
                let expected = if reason.is_warning() { "Warning" } else { "Normal" };
                ensure!(kind == expected, "expected {what} to be of type {expected}, it is {kind}");
                Ok(message)
            })
    }

    pub(crate) async fn logs(&self, pod: &str, container: &str) -> Result<String> {
        let params = LogParams { container: Some(container.to_owned()), ..LogParams::default() };
        self.lab
            .pods(&self.namespace)
            .logs(pod, &params)
            .await
            .with_context(|| format!("the log of {container} in pod {pod}"))
    }

    /// Follows a container's log from the start, so that it is known even if the pod is deleted.
    pub(crate) fn follow_log(&self, pod: &str, container: &str) -> Followed {
        let pods = self.lab.pods(&self.namespace);
        let (pod, container) = (pod.to_owned(), container.to_owned());
        Followed(tokio::spawn(async move {
            let params = LogParams { container: Some(container), follow: true, ..LogParams::default() };
            let stream =
                pods.log_stream(&pod, &params).await.with_context(|| format!("following a log of pod {pod}"))?;
            let mut text = Vec::new();
            // Cut off with its pod, at the latest.
            let _ = std::pin::pin!(stream).read_to_end(&mut text).await;
            Ok(String::from_utf8_lossy(&text).into_owned())
        }))
    }
}

/// A log that is being followed.
pub(crate) struct Followed(tokio::task::JoinHandle<Result<String>>);

impl Followed {
    /// All of it, once the container has ended.
    pub(crate) async fn text(self) -> Result<String> {
        let read = tokio::time::timeout(PATIENCE, self.0).await.context("the log that was followed does not end")?;
        read?
    }
}

/// A TaskRun that was started.
pub(crate) struct Run<'a> {
    scene: &'a Scene<'a>,
    pub(crate) name: String,
}

impl Run<'_> {
    /// The name of its pod, once there is one.
    pub(crate) async fn pod(&self) -> Result<String> {
        let what = format!("a pod of TaskRun {}", self.name);
        let find = self.scene.record.wait_for(&what, PATIENCE, |seen| {
            let run = seen.run(&self.name)?;
            let pod = (*run.pods().first()?).to_owned();
            // Both are wanted, and the watches are two.
            seen.pod(&pod).map(|_| Ok(pod)).or_else(|| {
                let verdict = run.verdict()?;
                Some(Err(format!("it ended without one: {} {}", verdict.reason, verdict.message)))
            })
        });
        match find.await? {
            Ok(pod) => Ok(pod),
            Err(why) => bail!("{what}: {why}"),
        }
    }

    /// How each step ended, in a word.
    pub(crate) fn steps(&self) -> Vec<String> {
        self.scene.record.look(|seen| seen.run(&self.name).map(|run| run.steps()).unwrap_or_default())
    }

    pub(crate) async fn verdict(&self) -> Result<Condition> {
        let what = format!("the verdict of TaskRun {}", self.name);
        self.scene.record.wait_for(&what, PATIENCE, |seen| seen.run(&self.name)?.verdict().cloned()).await
    }

    pub(crate) async fn succeeds(&self) -> Result<()> {
        let verdict = self.verdict().await?;
        ensure!(
            verdict.status == "True",
            "expected TaskRun {} to succeed, it failed: {} {}",
            self.name,
            verdict.reason,
            verdict.message
        );
        Ok(())
    }

    /// It fails, for one of these reasons.
    pub(crate) async fn fails(&self, reasons: &[&str]) -> Result<()> {
        let verdict = self.verdict().await?;
        ensure!(
            verdict.status == "False" && reasons.contains(&verdict.reason.as_str()),
            "expected TaskRun {} to fail with one of {reasons:?}, its verdict is Succeeded={} {}: {}",
            self.name,
            verdict.status,
            verdict.reason,
            verdict.message
        );
        Ok(())
    }

    /// Its pod, once it has ended.
    pub(crate) async fn pod_ends(&self) -> Result<Arc<Pod>> {
        let pod = self.pod().await?;
        self.scene.wait_for_pod(&pod, "it ends", PodExt::is_terminal).await
    }

    /// The same, and in this phase.
    pub(crate) async fn pod_ends_in(&self, phase: &str) -> Result<Arc<Pod>> {
        let pod = self.pod_ends().await?;
        ensure!(pod.phase() == phase, "expected pod {} to end {phase}, it ended {}", pod.name(), pod.phase());
        Ok(pod)
    }

    /// Its pod is gone, or has ended.
    pub(crate) async fn pod_is_over(&self) -> Result<()> {
        let pod = self.pod().await?;
        let what = format!("pod {pod} ends or is gone");
        let over = self.scene.record.wait_for(&what, PATIENCE, |seen| {
            (seen.is_gone(&pod) || seen.pod(&pod).is_some_and(|pod| pod.is_terminal())).then_some(())
        });
        over.await
    }

    pub(crate) async fn cancel(&self) -> Result<()> {
        self.scene
            .lab
            .task_runs(&self.scene.namespace)
            .patch(
                &self.name,
                &PatchParams::default(),
                &Patch::Merge(json!({ "spec": { "status": "TaskRunCancelled" } })),
            )
            .map(|done| done.map(|_| ()))
            .await
            .with_context(|| format!("cancelling TaskRun {}", self.name))
    }
}
