//! Every container that is no step: who it is, who is waited for, who is stopped and how it ends.

use super::contract::Settings;
use super::model::{Container, ContainerStatus, Pod, RestartPolicy};
use super::tekton::{RESULTS_SIDECAR, is_step};

/// What is known of a sidecar that injectors or people commonly add.
struct Known {
    /// The container's name: whole, or up to a `*` at its end.
    name: &'static str,
    role: Role,
    on_term: OnTerm,
    ends_by_itself: bool,
}

/// Where a row's claim comes from stands in `docs/sidecars.md`.
const KNOWN: [Known; 13] = [
    Known { name: "istio-proxy", role: Role::NetworkProxy, on_term: OnTerm::ExitsZero, ends_by_itself: false },
    Known { name: "linkerd-proxy", role: Role::NetworkProxy, on_term: OnTerm::Unknown, ends_by_itself: false },
    Known { name: "kuma-sidecar", role: Role::NetworkProxy, on_term: OnTerm::Unknown, ends_by_itself: false },
    Known { name: "consul-dataplane*", role: Role::NetworkProxy, on_term: OnTerm::Unknown, ends_by_itself: false },
    Known { name: "envoy", role: Role::NetworkProxy, on_term: OnTerm::Unknown, ends_by_itself: false },
    Known { name: "daprd", role: Role::Helper, on_term: OnTerm::ExitsZero, ends_by_itself: false },
    Known { name: "vault-agent", role: Role::Helper, on_term: OnTerm::ExitsZero, ends_by_itself: false },
    Known { name: "otc-container", role: Role::Helper, on_term: OnTerm::ExitsZero, ends_by_itself: false },
    Known { name: "fluent-bit", role: Role::Helper, on_term: OnTerm::ExitsZero, ends_by_itself: false },
    Known { name: "csql-*", role: Role::Helper, on_term: OnTerm::ExitsZeroIfTold, ends_by_itself: false },
    Known { name: "cloud-sql-proxy", role: Role::Helper, on_term: OnTerm::ExitsZeroIfTold, ends_by_itself: false },
    Known { name: "gke-gcsfuse-sidecar", role: Role::Helper, on_term: OnTerm::ExitsZero, ends_by_itself: true },
    Known { name: RESULTS_SIDECAR, role: Role::Helper, on_term: OnTerm::Unknown, ends_by_itself: true },
];

/// Environment variable of the Cloud SQL proxy (≥ 2.9) that makes it exit 0 on TERM instead of 143.
const CSQL_EXIT_ZERO: &str = "CSQL_PROXY_EXIT_ZERO_ON_SIGTERM";

/// What a sidecar is to the others: helpers may need the network until they have ended, so they end first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Anything that is not known to be a network proxy.
    Helper,
    /// The pod's way to the network.
    NetworkProxy,
}

/// How a sidecar's process ends on SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnTerm {
    ExitsZero,
    ExitsZeroIfTold,
    Unknown,
}

/// A sidecar of a pod, with its place in the spec and the kubelet's word on it.
#[derive(Clone, Copy, Debug)]
pub struct Sidecar<'a> {
    /// Its index in `spec.containers`, or in `spec.initContainers` if it is native.
    pub index: usize,
    /// A restartable init container (KEP-753): the kubelet ends it after the last regular container.
    pub native: bool,
    /// The container.
    pub container: &'a Container,
    /// Its status, if the kubelet has reported any.
    pub status: Option<&'a ContainerStatus>,
}

/// The sidecars among `spec.containers`, in their order.
pub fn classic(pod: &Pod) -> impl Iterator<Item = Sidecar<'_>> {
    pod.spec
        .containers
        .iter()
        .enumerate()
        .filter(|(_, container)| !is_step(container))
        .map(|(index, container)| Sidecar { index, native: false, container, status: pod.status_of(&container.name) })
}

/// The sidecars among `spec.initContainers`: those that restart always.
pub fn native(pod: &Pod) -> impl Iterator<Item = Sidecar<'_>> {
    pod.spec
        .init_containers
        .iter()
        .enumerate()
        .filter(|(_, container)| container.restart_policy == Some(RestartPolicy::Always))
        .map(|(index, container)| Sidecar {
            index,
            native: true,
            container,
            status: pod.init_status_of(&container.name),
        })
}

/// The sidecars that the first step waits for: every classic one, and those native ones that say when they are ready
/// but do not hold the start themselves (a startupProbe does that).
pub fn awaited<'a>(pod: &'a Pod, settings: &'a Settings) -> impl Iterator<Item = Sidecar<'a>> {
    native(pod)
        .filter(|sidecar| sidecar.container.readiness_probe.is_some() && sidecar.container.startup_probe.is_none())
        .chain(classic(pod))
        .filter(|sidecar| !settings.ignores(&sidecar.container.name))
}

impl<'a> Sidecar<'a> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'a str {
        &self.container.name
    }

    /// What it is to the others.
    #[must_use]
    pub fn role(&self) -> Role {
        self.known().map_or(Role::Helper, |known| known.role)
    }

    /// Ends on its own once the steps have ended, and must not be stopped before.
    #[must_use]
    pub fn ends_by_itself(&self) -> bool {
        self.known().is_some_and(|known| known.ends_by_itself)
    }

    /// Known to exit 0 when told to stop, so that it needs no nop to end clean.
    #[must_use]
    pub fn exits_zero_on_term(&self) -> bool {
        match self.known().map(|known| known.on_term) {
            Some(OnTerm::ExitsZero) => true,
            Some(OnTerm::ExitsZeroIfTold) => {
                self.container.env.iter().any(|env| env.name == CSQL_EXIT_ZERO && env.value == "true")
                    || self.container.args.iter().any(|arg| arg == "--exit-zero-on-sigterm")
            }
            Some(OnTerm::Unknown) | None => false,
        }
    }

    /// Running now.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.status.is_some_and(|status| status.state.running.is_some())
    }

    /// Has not run yet: no process of it exists or has existed.
    #[must_use]
    pub fn never_started(&self) -> bool {
        self.status.is_none_or(|status| {
            status.state.running.is_none()
                && status.state.terminated.is_none()
                && status.last_state.terminated.is_none()
                && status.restart_count == 0
        })
    }

    /// The exit code it ended with, if it has ended and will not be started again.
    #[must_use]
    pub fn ended(&self, pod: &Pod) -> Option<i32> {
        let code = self.status?.state.terminated.as_ref()?.exit_code;
        (!restarts(pod, self.container, code)).then_some(code)
    }

    fn known(&self) -> Option<&'static Known> {
        KNOWN.iter().find(|known| match known.name.strip_suffix('*') {
            Some(start) => self.container.name.starts_with(start),
            None => self.container.name == known.name,
        })
    }
}

/// The policy that holds for a container of `spec.containers` when no rule does: its own, before the pod's.
#[must_use]
pub fn restart_policy(pod: &Pod, container: &Container) -> RestartPolicy {
    container.restart_policy.or(pod.spec.restart_policy).unwrap_or(RestartPolicy::Always)
}

/// Never started again, whatever it exits with.
#[must_use]
pub fn never_restarts(pod: &Pod, container: &Container) -> bool {
    restart_policy(pod, container) == RestartPolicy::Never && container.restart_policy_rules.is_empty()
}

/// Will the kubelet start this container again after it exited with `code`?
#[must_use]
pub fn restarts(pod: &Pod, container: &Container, code: i32) -> bool {
    let by_rule = container.restart_policy_rules.iter().any(|rule| {
        rule.action == "Restart"
            && rule.exit_codes.as_ref().is_some_and(|codes| match codes.operator.as_str() {
                "In" => codes.values.contains(&code),
                "NotIn" => !codes.values.contains(&code),
                _ => false,
            })
    });
    by_rule
        || match restart_policy(pod, container) {
            RestartPolicy::Never => false,
            RestartPolicy::OnFailure => code != 0,
            RestartPolicy::Always | RestartPolicy::Unknown => true,
        }
}
