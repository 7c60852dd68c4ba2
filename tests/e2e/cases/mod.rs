//! What must be seen, by the state of Tekton in which it must be.

mod admission;
mod alone;
mod bounds;
mod cancel;
mod counts;
mod defaults;
mod doctor;
mod gate;
mod injected;
mod istio;
mod native;
mod order;
mod outages;
mod stuck;
mod verdicts;

use crate::harness::case::{Group, Strategy, TektonNop, cases};

/// Does not wait for sidecars.
const NO_WAIT: (&str, &str) = ("await-sidecar-readiness", "false");
/// Makes declared sidecars native, and stops no sidecar at all any more.
const NATIVE: (&str, &str) = ("enable-kubernetes-sidecar", "true");
/// Gives its own containers what restricted pod security asks for.
const SECURED: (&str, &str) = ("set-security-context", "true");

/// Every group, in the order in which Tekton is changed least.
#[allow(clippy::too_many_lines, reason = "a list")]
pub(crate) fn all() -> Vec<Group> {
    vec![
        Group {
            name: "no-wait",
            about: "Tekton does not wait for sidecars; it stops them with Kickstand's nop image",
            flags: &[NO_WAIT],
            nop: TektonNop::Ours,
            strategy: Strategy::Classic,
            istio: false,
            disturbing: false,
            cases: cases![
                gate::a_declared_sidecar_ready_after_three_seconds_holds_the_step_and_the_pod_succeeds,
                gate::a_red_run_with_a_declared_sidecar_ends_and_stays_red,
                gate::a_preset_ready_annotation_opens_no_gate,
                gate::a_namespace_that_opts_out_while_a_pod_is_held_lets_it_go,
                gate::a_gate_annotated_off_holds_nothing,
                admission::without_a_sidecar_the_webhook_changes_nothing,
                admission::a_dry_run_gets_the_same_answer_and_leaves_no_trace,
                admission::a_pod_of_nobody_and_an_opted_out_pod_are_left_alone,
                admission::a_malformed_annotation_is_never_fatal_and_is_spoken_of,
                counts::a_sidecar_that_exits_zero_counts_as_ready,
                counts::a_sidecar_that_exits_one_counts_as_ready_with_a_warning,
                counts::of_two_sidecars_one_crashing_and_one_ready_after_twenty_seconds_the_step_waits_for_the_second,
                counts::a_sidecar_that_never_becomes_ready_is_given_up_at_the_gate_timeout,
                counts::a_step_held_for_a_minute_is_spoken_of_and_the_sidecar_named,
                counts::a_sidecar_whose_image_cannot_be_pulled_leaves_the_verdict_as_it_is_without_kickstand,
                cancel::cancelled_while_held_the_step_never_starts,
                cancel::timed_out_while_held_the_step_never_starts,
                cancel::cancelled_while_running_the_pod_goes,
                cancel::timed_out_while_running_the_pod_goes,
            ],
        },
        Group {
            name: "no-wait-keep",
            about: "Tekton does not wait for sidecars, and keeps the pods of cancelled runs",
            flags: &[NO_WAIT, ("keep-pod-on-cancel", "true")],
            nop: TektonNop::Ours,
            strategy: Strategy::Classic,
            istio: false,
            disturbing: false,
            cases: cases![
                cancel::cancelled_while_held_a_kept_pod_ends_and_the_step_never_starts,
                cancel::timed_out_while_held_a_kept_pod_ends_and_the_step_never_starts,
                cancel::cancelled_while_running_a_kept_pod_ends,
                cancel::timed_out_while_running_a_kept_pod_ends,
                stuck::a_kept_pod_whose_step_can_never_start_is_ended_after_two_minutes,
            ],
        },
        Group {
            name: "alone",
            about: "Tekton neither waits for sidecars nor stops them: all is Kickstand's",
            flags: &[NO_WAIT, NATIVE],
            nop: TektonNop::Ours,
            strategy: Strategy::Classic,
            istio: false,
            disturbing: false,
            cases: cases![
                injected::a_sidecar_injected_after_ours_is_held_for_released_and_stopped,
                injected::a_sidecar_injected_before_ours_is_held_for_released_and_stopped,
                injected::sidecars_injected_before_and_after_ours_are_all_held_for,
                injected::a_red_run_keeps_the_logs_of_its_injected_sidecar,
                injected::keep_logs_keeps_the_logs_of_a_green_run,
                order::two_helpers_end_before_the_network_proxy,
                order::a_deaf_sidecar_is_killed_and_the_pod_succeeds,
                order::an_ignored_sidecar_and_one_that_may_finish_are_left_alone,
                stuck::a_restartable_sidecar_that_crash_loops_counts_as_ready_with_a_warning,
                stuck::a_sidecar_that_restarts_whatever_it_exits_with_is_ended_by_the_deadline,
                verdicts::three_steps_have_the_verdict_that_they_have_without_kickstand,
                verdicts::a_failing_step_has_the_verdict_that_it_has_without_kickstand,
                verdicts::on_error_continue_has_the_verdict_that_it_has_without_kickstand,
                verdicts::a_step_timeout_has_the_verdict_that_it_has_without_kickstand,
            ],
        },
        Group {
            name: "tekton-native",
            about: "Tekton's declared sidecars are native, and it stops none: injected ones keep a pod alive for ever",
            flags: &[NATIVE],
            nop: TektonNop::Ours,
            strategy: Strategy::Classic,
            istio: false,
            disturbing: false,
            cases: cases![
                alone::a_classic_injected_sidecar_no_longer_keeps_the_pod_alive,
                alone::a_classic_injected_sidecar_beside_a_declared_one_no_longer_keeps_the_run_alive,
                alone::both_attempts_of_a_retried_run_end_with_a_classic_injected_sidecar,
            ],
        },
        Group {
            name: "outages",
            about: "Kickstand, or a part of it, is taken away; Tekton neither waits nor stops",
            flags: &[NO_WAIT, NATIVE],
            nop: TektonNop::Ours,
            strategy: Strategy::Classic,
            istio: false,
            disturbing: true,
            cases: cases![
                outages::without_a_webhook_runs_pass_and_their_sidecars_are_stopped,
                outages::without_a_controller_new_pods_are_let_through_and_a_held_one_waits_for_its_return,
                outages::a_killed_leader_leaves_ten_held_pods_to_the_standby,
                outages::an_uninstall_releases_a_held_pod,
            ],
        },
        Group {
            name: "defaults-our-nop",
            about: "Tekton's defaults (it waits and stops too), but for its nop image, which is Kickstand's",
            flags: &[],
            nop: TektonNop::Ours,
            strategy: Strategy::Classic,
            istio: false,
            disturbing: false,
            cases: cases![defaults::twenty_runs_of_twenty_succeed_and_so_do_their_pods],
        },
        Group {
            name: "defaults",
            about: "Tekton's defaults: it waits and stops too, with its own nop image",
            flags: &[],
            nop: TektonNop::Its,
            strategy: Strategy::Classic,
            istio: false,
            disturbing: false,
            cases: cases![defaults::twenty_runs_of_twenty_succeed],
        },
        Group {
            name: "native-defaults",
            about: "Kickstand's and Tekton's defaults: declared servers are native, and Tekton's own wait goes",
            flags: &[],
            nop: TektonNop::Its,
            strategy: Strategy::Default,
            istio: false,
            disturbing: false,
            cases: cases![
                native::beside_tektons_defaults_ten_of_ten_runs_and_pods_succeed,
                native::with_a_classic_sidecar_tektons_own_wait_stays,
            ],
        },
        Group {
            name: "doctor",
            about: "Kickstand's and Tekton's defaults: pods are tried by dry runs, as `helm test` does",
            flags: &[],
            nop: TektonNop::Its,
            strategy: Strategy::Default,
            istio: false,
            disturbing: false,
            cases: cases![
                doctor::helm_test_passes_twice_and_leaves_nothing,
                doctor::a_webhook_that_takes_restart_policy_away_is_found_before_any_run,
                doctor::a_namespace_that_is_not_covered_is_told_how_to_be,
            ],
        },
        Group {
            name: "istio-defaults",
            about: "Kickstand's, Tekton's and Istio's defaults",
            flags: &[],
            nop: TektonNop::Its,
            strategy: Strategy::Default,
            istio: true,
            disturbing: false,
            cases: cases![
                istio::with_a_native_proxy_tektons_own_wait_goes,
                istio::with_a_classic_proxy_tektons_own_wait_stays,
            ],
        },
        Group {
            name: "native",
            about: "Declared servers are native; Tekton does not wait for sidecars",
            flags: &[NO_WAIT],
            nop: TektonNop::Ours,
            strategy: Strategy::Default,
            istio: false,
            disturbing: false,
            cases: cases![
                native::a_declared_server_is_native_holds_the_step_and_is_ended_by_the_kubelet,
                native::a_red_run_with_a_native_server_stays_red_and_keeps_its_log,
                native::of_two_native_servers_the_first_may_need_the_second,
                native::a_one_shot_beside_a_server_leaves_both_classic_and_stopped,
                native::a_native_server_that_exits_at_once_fails_no_run,
                native::a_native_server_that_cannot_be_started_is_replaced_by_a_classic_one_five_times_of_five,
                native::a_native_server_that_is_never_ready_is_given_up_at_the_gate_timeout,
                native::a_startup_probe_or_a_post_start_hook_leaves_a_server_classic,
                native::however_a_server_says_that_it_is_ready_it_is_native,
                native::twelve_servers_are_all_native_and_all_held_for,
                native::what_asks_for_the_classic_strategy_gets_it,
                native::cancelled_while_a_native_server_holds_it_the_step_never_starts,
                native::timed_out_while_a_native_server_holds_it_the_step_never_starts,
                native::on_error_continue_and_a_step_timeout_have_the_verdict_that_they_have_without_kickstand,
                native::a_result_is_written_and_read_beside_a_native_server,
                native::both_attempts_of_a_retried_run_are_native_and_end,
                native::where_another_webhook_takes_restart_policy_away_no_pod_is_refused_ten_times_of_ten,
                bounds::where_quota_and_limits_just_fit_the_classic_pod_they_fit_the_native_one,
            ],
        },
        Group {
            name: "restricted",
            about: "Pod security is restricted; Tekton does not wait for sidecars",
            flags: &[NO_WAIT, SECURED],
            nop: TektonNop::Ours,
            strategy: Strategy::Default,
            istio: false,
            disturbing: false,
            cases: cases![bounds::under_restricted_pod_security_both_strategies_hold_and_end],
        },
        Group {
            name: "native-nodes",
            about: "An old Node joins, and leaves again",
            flags: &[NO_WAIT],
            nop: TektonNop::Ours,
            strategy: Strategy::Default,
            istio: false,
            disturbing: true,
            cases: cases![native::while_a_node_is_too_old_pods_are_classic],
        },
        Group {
            name: "istio",
            about: "Beside the real Istio; Tekton does not wait for sidecars",
            flags: &[NO_WAIT],
            nop: TektonNop::Ours,
            strategy: Strategy::Default,
            istio: true,
            disturbing: false,
            cases: cases![
                istio::a_native_proxy_is_ready_for_the_first_call_twenty_times_of_twenty,
                istio::a_declared_server_beside_a_native_proxy_is_native_too,
                istio::a_pod_that_opts_out_of_istio_is_left_alone,
                istio::a_pod_that_opts_in_alone_is_held,
                istio::without_kickstand_first_calls_fail_with_a_classic_proxy,
            ],
        },
        Group {
            name: "istio-alone",
            about: "The same, and Tekton stops no sidecar either",
            flags: &[NO_WAIT, NATIVE],
            nop: TektonNop::Ours,
            strategy: Strategy::Default,
            istio: true,
            disturbing: false,
            cases: cases![
                istio::a_classic_proxy_is_held_for_and_ended_twenty_times_of_twenty,
                istio::a_classic_proxy_that_holds_the_application_is_held_for_and_ended,
            ],
        },
        Group {
            name: "istio-set",
            about: "Istio is set otherwise",
            flags: &[NO_WAIT],
            nop: TektonNop::Ours,
            strategy: Strategy::Default,
            istio: true,
            disturbing: true,
            cases: cases![
                istio::an_istio_of_classic_proxies_is_asked_for_native_ones_twenty_times_of_twenty,
                istio::an_istio_that_is_called_again_adds_no_container_twice,
            ],
        },
    ]
}
