//! Every container that is no step: who it is, who is waited for, who is stopped and how it ends.

use super::contract::Settings;
use super::known::{Known, OnTerm, Role};
use super::model::{Container, ContainerStatus, EnvVar, Pod, RestartPolicy};
use super::tekton::is_step;

/// Environment variable of the Cloud SQL proxy (≥ 2.9) that makes it exit 0 on TERM instead of 143.
const CSQL_EXIT_ZERO: &str = "CSQL_PROXY_EXIT_ZERO_ON_SIGTERM";

/// This variable tells its container to exit 0 on TERM.
#[must_use]
pub fn env_tells_exit_zero(env: &EnvVar) -> bool {
    env.name == CSQL_EXIT_ZERO && env.value == "true"
}

/// So does this argument.
#[must_use]
#[allow(clippy::ptr_arg, reason = "asked of each of a list of arguments")]
pub fn arg_tells_exit_zero(arg: &String) -> bool {
    matches!(arg.as_str(), "--exit-zero-on-sigterm" | "--exit-zero-on-sigterm=true")
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
    pub fn role(&self, known: &Known) -> Role {
        known.of(self.container).map_or(Role::Helper, |row| row.role)
    }

    /// Ends on its own once the steps have ended, and must not be stopped before.
    #[must_use]
    pub fn ends_by_itself(&self, known: &Known) -> bool {
        known.of(self.container).is_some_and(|row| row.ends_by_itself)
    }

    /// Known to exit 0 when told to stop, so that it needs no nop to end clean.
    #[must_use]
    pub fn exits_zero_on_term(&self, known: &Known) -> bool {
        match known.of(self.container).map(|row| row.on_term) {
            Some(OnTerm::ExitsZero) => true,
            Some(OnTerm::ExitsZeroIfTold) => {
                self.container.env.iter().any(env_tells_exit_zero)
                    || self.container.args.iter().any(arg_tells_exit_zero)
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
    // Whatever a rule's action is: there is `Restart`, and `RestartAllContainers` (1.35), which means this one too.
    let by_rule = container.restart_policy_rules.iter().any(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| match codes.operator.as_str() {
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::decide::tests::build::{C, c, pod};
    use super::*;

    #[rstest]
    #[case::istio("istio-proxy", Role::NetworkProxy)]
    #[case::linkerd("linkerd-proxy", Role::NetworkProxy)]
    #[case::kuma("kuma-sidecar", Role::NetworkProxy)]
    #[case::consul("consul-dataplane", Role::NetworkProxy)]
    #[case::consul_with_several_ports("consul-dataplane-web", Role::NetworkProxy)]
    #[case::app_mesh("envoy", Role::NetworkProxy)]
    #[case::vault("vault-agent", Role::Helper)]
    #[case::dapr("daprd", Role::Helper)]
    #[case::one_of_the_tasks_own("sidecar-web", Role::Helper)]
    #[case::one_that_borrows_a_name("sidecar-istio-proxy", Role::Helper)]
    fn what_a_sidecar_is_to_the_others(#[case] name: &str, #[case] role: Role) {
        let pod = pod().sidecar(c(name)).build();
        assert_eq!(classic(&pod).next().unwrap().role(Known::builtin()), role);
    }

    #[rstest]
    #[case::never("Never", c("x"), &[])]
    #[case::on_failure("OnFailure", c("x"), &[1, 137])]
    #[case::always("Always", c("x"), &[0, 1, 137])]
    #[case::by_a_policy_that_is_not_known("Perhaps", c("x"), &[0, 1, 137])]
    #[case::by_its_own_policy("Never", c("x").policy("OnFailure"), &[1, 137])]
    #[case::not_by_the_pods_if_it_has_its_own("Always", c("x").policy("Never"), &[])]
    #[case::by_a_rule("Never", c("x").rule("In", &[137, 5]), &[137])]
    #[case::by_a_rule_for_all_others("Never", c("x").rule("NotIn", &[137]), &[0, 1])]
    #[case::by_a_rule_beside_its_policy("Never", c("x").policy("OnFailure").rule("In", &[0]), &[0, 1, 137])]
    #[case::not_by_a_rule_that_is_not_known("Never", c("x").rule("Above", &[0]), &[])]
    fn a_container_is_started_again(#[case] policy: &str, #[case] container: C, #[case] codes: &[i32]) {
        let pod = pod().policy(policy).sidecar(container).build();
        let container = &pod.spec.containers[0];
        let again: Vec<i32> = [0, 1, 137].into_iter().filter(|code| restarts(&pod, container, *code)).collect();
        assert_eq!(again, codes);
    }

    #[test]
    fn a_rule_that_restarts_the_whole_pod_restarts_the_container() {
        let rules = serde_json::json!([{
            "action": "RestartAllContainers", "exitCodes": { "operator": "In", "values": [137] },
        }]);
        let pod = pod().sidecar(c("x")).set("/spec/containers/0/restartPolicyRules", rules).build();
        assert!(restarts(&pod, &pod.spec.containers[0], 137));
        assert!(!never_restarts(&pod, &pod.spec.containers[0]));
    }

    #[test]
    fn without_any_policy_a_container_restarts_always() {
        let pod = pod().set("/spec/restartPolicy", serde_json::Value::Null).sidecar(c("x")).build();
        assert_eq!(restart_policy(&pod, &pod.spec.containers[0]), RestartPolicy::Always);
    }

    #[rstest]
    #[case::without_a_status(c("x"), true)]
    #[case::while_it_is_pulled(c("x").waiting("ContainerCreating"), true)]
    #[case::not_while_it_runs(c("x").running(), false)]
    #[case::not_after_it_ended(c("x").exited(0), false)]
    #[case::not_between_two_starts(c("x").waiting("CrashLoopBackOff").restarted(1, 1), false)]
    fn a_sidecar_has_never_started(#[case] sidecar: C, #[case] expected: bool) {
        let pod = pod().sidecar(sidecar).build();
        assert_eq!(classic(&pod).next().unwrap().never_started(), expected);
    }

    #[test]
    fn the_kubelet_lists_statuses_by_name_and_a_sidecar_may_be_the_first_container() {
        let pod = pod()
            .sidecar(c("istio-proxy").ready())
            .step(c("one").running())
            .sidecar(c("sidecar-web").running())
            .native(c("native").ready())
            .build();
        let found: Vec<(usize, &str, bool)> =
            classic(&pod).map(|sidecar| (sidecar.index, sidecar.name(), sidecar.status.unwrap().ready)).collect();
        assert_eq!(found, [(0, "istio-proxy", true), (2, "sidecar-web", false)]);
        assert_eq!(native(&pod).map(|sidecar| (sidecar.index, sidecar.name())).collect::<Vec<_>>(), [(0, "native")]);
    }

    #[test]
    fn an_init_container_that_runs_once_is_no_sidecar() {
        let init = serde_json::json!([{ "name": "prepare" }, { "name": "place", "restartPolicy": "Never" }]);
        assert_eq!(native(&pod().set("/spec/initContainers", init).build()).count(), 0);
    }
}
