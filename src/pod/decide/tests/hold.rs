//! The gate is shut.

use jiff::SignedDuration;
use rstest::rstest;

use super::build::{Build, C, at, c, pod};
use super::{Seen, held, held_without_need, seen_at};
use crate::pod::contract::GateTimeout;
use crate::pod::decide::gate_timeout;
use crate::pod::verdict::Outcome;

fn held_by(sidecar: C) -> Build {
    pod().gated().step(c("one").ready()).sidecar(sidecar)
}

#[rstest]
#[case::when_the_run_failed(seen_at(9).failed(9), held())]
#[case::when_the_run_succeeded_without_it(seen_at(9).succeeded(9), held())]
#[case::even_if_every_sidecar_is_ready(seen_at(9).failed(9), held_without_need())]
#[case::even_if_its_timeout_is_over(seen_at(900).failed(9), held().annotated("kickstand.dev/gate-timeout", "1s"))]
#[case::when_the_run_is_tried_again_elsewhere(seen_at(9).recorded(Outcome::Superseded, Some(9)), held())]
#[case::when_the_run_is_gone(seen_at(30).recorded(Outcome::Gone, None).verdict_first_seen(20), held())]
fn a_shut_gate_never_opens_and_the_pod_is_ended(#[case] seen: Seen, #[case] pod: Build) {
    assert_eq!(seen.on(pod.clone()), "end");
    assert_eq!(seen.on(pod.cancelled()), "end");
}

#[test]
fn a_pod_that_is_ended_behind_its_gate_says_why() {
    insta::assert_snapshot!(seen_at(9).failed(9).says_of(held()), @"KickstandGateClosed: the run is over (failed, timed out or cancelled) before its first step started: the step will not run, the pod is ended");
    insta::assert_snapshot!(seen_at(9).recorded(Outcome::Superseded, Some(9)).says_of(held()), @"KickstandGateClosed: the run is over (tried again in another pod) before its first step started: the step will not run, the pod is ended");
    let gone = seen_at(30).recorded(Outcome::Gone, None).verdict_first_seen(20);
    insta::assert_snapshot!(gone.says_of(held()), @"KickstandGateClosed: the run is over (deleted) before its first step started: the step will not run, the pod is ended");
}

#[test]
fn a_cancelled_runs_gate_stays_shut_until_its_verdict_ends_the_pod() {
    for pod in [held().cancelled(), held_without_need().cancelled()] {
        assert_eq!(seen_at(900).on(pod.clone()), "say cancelled");
        assert_eq!(seen_at(900).failed(899).on(pod), "end");
    }
    insta::assert_snapshot!(seen_at(9).says_of(held().cancelled()), @"KickstandGateClosed: the run is cancelled: the first step will not start");
}

#[rstest]
#[case::it_is_ready(c("sidecar-web").readiness_probe().ready(), "open")]
#[case::it_ended_0_and_never_claimed_readiness(c("sidecar-seed").exited(0), "open")]
#[case::a_proxy_ended_0(c("istio-proxy").exited(0), "open with a Warning")]
#[case::one_with_a_readiness_probe_ended_0(c("sidecar-web").readiness_probe().exited(0), "open with a Warning")]
#[case::it_ended_otherwise_and_will_not_restart(c("sidecar-web").exited(3), "open with a Warning")]
#[case::it_could_not_be_started(c("sidecar-web").start_error(), "open with a Warning")]
#[case::it_was_restarted_twice(c("sidecar-web").policy("Always").running().restarted(2, 7), "open with a Warning")]
#[case::it_crashes_for_the_third_time(
    c("sidecar-web").policy("OnFailure").waiting("CrashLoopBackOff").restarted(2, 7), "open with a Warning"
)]
#[case::it_runs(c("sidecar-web").running(), "nothing; again at 60")]
#[case::it_was_restarted_once(c("sidecar-web").policy("Always").running().restarted(1, 7), "nothing; again at 60")]
#[case::it_crashed_twice_and_is_ready_now(c("sidecar-web").policy("Always").ready().restarted(5, 7), "open")]
#[case::it_failed_and_will_be_restarted(c("sidecar-web").policy("OnFailure").exited(1), "nothing; again at 60")]
#[case::it_failed_and_a_rule_restarts_it(c("sidecar-web").rule("In", &[42]).exited(42), "nothing; again at 60")]
#[case::it_failed_and_no_rule_restarts_it(c("sidecar-web").rule("In", &[42]).exited(41), "open with a Warning")]
#[case::it_is_being_pulled(c("sidecar-web").waiting("ContainerCreating"), "nothing; again at 60")]
#[case::nothing_is_known_of_it(c("sidecar-web"), "nothing; again at 60")]
fn the_gate_and_a_sidecar(#[case] sidecar: C, #[case] expected: &str) {
    assert_eq!(seen_at(10).on(held_by(sidecar)), expected);
}

#[test]
fn readiness_in_a_container_that_does_not_run_means_nothing() {
    let stale = held_by(c("sidecar-web").ready().waiting("CrashLoopBackOff"));
    assert_eq!(seen_at(10).on(stale), "nothing; again at 60");
}

#[rstest]
#[case::one_that_says_when_it_is_ready(c("sidecar-web").readiness_probe().running(), "nothing; again at 60")]
#[case::one_that_is_ready(c("sidecar-web").readiness_probe().ready(), "open")]
#[case::one_that_ended_0_and_starts_again(c("sidecar-web").readiness_probe().exited(0), "nothing; again at 60")]
#[case::one_that_keeps_crashing(
    c("sidecar-web").readiness_probe().waiting("CrashLoopBackOff").restarted(2, 1), "open with a Warning"
)]
#[case::not_one_whose_startup_probe_holds_the_start(c("web").readiness_probe().startup_probe().starting(), "open")]
#[case::not_one_without_a_probe(c("web").running(), "open")]
fn the_gate_waits_for_native_sidecars(#[case] sidecar: C, #[case] expected: &str) {
    assert_eq!(seen_at(10).on(pod().gated().step(c("one").ready()).native(sidecar)), expected);
}

#[test]
fn the_gate_waits_for_the_rest_when_one_has_failed() {
    let pod = held_by(c("sidecar-db").exited(1));
    assert_eq!(seen_at(10).on(pod.clone().sidecar(c("istio-proxy").running())), "nothing; again at 60");
    assert_eq!(seen_at(10).on(pod.sidecar(c("istio-proxy").ready())), "open with a Warning");
}

#[test]
fn an_ignored_sidecar_is_not_waited_for() {
    assert_eq!(seen_at(10).on(held().annotated("kickstand.dev/ignore", "web")), "open");
    assert_eq!(seen_at(10).on(held().annotated("kickstand.dev/ignore", "sidecar-web")), "open");
    assert_eq!(seen_at(10).on(held().annotated("kickstand.dev/ignore", "we")), "nothing; again at 60");
}

#[test]
fn an_opened_gate_says_whom_it_did_not_wait_for() {
    let opened = |sidecar: C| seen_at(10).says_of(held_by(sidecar));
    insta::assert_snapshot!(opened(c("sidecar-web").ready()), @"KickstandGateOpened: every sidecar is ready: the first step starts");
    insta::assert_snapshot!(opened(c("istio-proxy").exited(0)), @"KickstandGateOpenedUnready: the first step starts although istio-proxy has already ended (exit code 0)");
    insta::assert_snapshot!(opened(c("sidecar-web").exited(3)), @"KickstandGateOpenedUnready: the first step starts although sidecar-web ended with exit code 3 and will not be started again");
    let crashing = c("sidecar-web").policy("OnFailure").waiting("CrashLoopBackOff").restarted(2, 7);
    insta::assert_snapshot!(seen_at(10).says_of(held_by(crashing).sidecar(c("db").exited(1))), @"KickstandGateOpenedUnready: the first step starts although sidecar-web was restarted 2 times and is not ready (it ended with exit code 7); db ended with exit code 1 and will not be started again");
}

#[test]
fn a_held_step_says_what_it_waits_for() {
    let held = |sidecar: C| seen_at(60).says_of(held_by(sidecar));
    insta::assert_snapshot!(held(c("web").readiness_probe().running()), @"KickstandGateHeld: the first step has been held for 1m: web runs, but its readinessProbe (httpGet :8080/healthz) has not succeeded yet");
    insta::assert_snapshot!(held(c("web").startup_probe().starting()), @"KickstandGateHeld: the first step has been held for 1m: web runs, but its startupProbe has not succeeded yet");
    insta::assert_snapshot!(held(c("web").running()), @"KickstandGateHeld: the first step has been held for 1m: web runs, but is not ready yet");
    insta::assert_snapshot!(held(c("web")), @"KickstandGateHeld: the first step has been held for 1m: web has no status yet");
    insta::assert_snapshot!(held(c("web").waiting("")), @"KickstandGateHeld: the first step has been held for 1m: web is waiting (no reason given)");
    insta::assert_snapshot!(held(c("web").waiting_because("ImagePullBackOff", "Back-off pulling image \"web:1\"")), @r#"KickstandGateHeld: the first step has been held for 1m: web is waiting (ImagePullBackOff: Back-off pulling image "web:1")"#);
    insta::assert_snapshot!(held(c("web").policy("OnFailure").exited(1)), @"KickstandGateHeld: the first step has been held for 1m: web ended with exit code 1 and is to be started again");
}

#[rstest]
#[case::nothing_for_a_minute(59, "nothing; again at 60")]
#[case::then(60, "say held 1m; again at 300")]
#[case::the_same_again(299, "say held 1m; again at 300")]
#[case::after_five(300, "say held 5m; again at 900")]
#[case::after_fifteen(900, "say held 15m; again at 1800")]
#[case::after_thirty_and_no_more(1800, "say held 30m")]
#[case::not_even_after_a_day(86_400, "say held 30m")]
fn a_gate_that_stays_shut_is_spoken_of_now_and_then(#[case] now: i64, #[case] expected: &str) {
    assert_eq!(seen_at(now).on(held().annotated("kickstand.dev/gate-timeout", "0")), expected);
}

#[test]
fn time_is_counted_from_the_pods_start_which_may_not_be_known_yet() {
    let unseen = held().set("/status/startTime", serde_json::Value::Null);
    assert_eq!(seen_at(86_400).on(unseen), "nothing");
    assert_eq!(seen_at(-5).on(held()), "nothing; again at 60", "our clock may be behind the kubelet's");
}

#[rstest]
#[case::ten_minutes_where_nobody_else_waits(held(), Some(600))]
#[case::none_where_tekton_waits_itself(held().tekton_waits(false), None)]
#[case::the_usual_one_where_tekton_has_let_the_step_go(held().tekton_waits(true), Some(600))]
#[case::a_third_of_the_deadline(held().deadline(900), Some(300))]
#[case::ten_minutes_at_most(held().deadline(5400), Some(600))]
fn the_gates_timeout_is_by_default(#[case] pod: Build, #[case] expected: Option<i64>) {
    let timeout = gate_timeout(&pod.build(), GateTimeout::Default);
    assert_eq!(timeout, expected.map(SignedDuration::from_secs));
}

#[rstest]
#[case::a_value_that_is_set(held().annotated("kickstand.dev/gate-timeout", "90s"), 90)]
#[case::a_value_that_is_set_although_tekton_waits(
    held().tekton_waits(false).annotated("kickstand.dev/gate-timeout", "1m30s"), 90
)]
#[case::a_value_beyond_a_third_of_the_deadline(held().deadline(120).annotated("kickstand.dev/gate-timeout", "90s"), 90)]
#[case::a_third_of_the_deadline(held().deadline(270), 90)]
#[case::ten_minutes_if_the_value_cannot_be_read(held().annotated("kickstand.dev/gate-timeout", "soon"), 600)]
fn the_gate_opens_with_a_warning_after(#[case] pod: Build, #[case] timeout: i64) {
    let early = seen_at(timeout - 1).on(pod.clone());
    assert!(!early.contains("open"), "{early}");
    assert!(early.ends_with(&format!("again at {timeout}")), "{early}");
    assert!(seen_at(timeout).on(pod).ends_with("open with a Warning"));
}

#[rstest]
#[case("0")]
#[case("0s")]
#[case("99999999h")]
#[case("9223372036854775807s")]
fn a_gate_without_a_timeout_never_opens_by_time(#[case] timeout: &str) {
    let pod = held().annotated("kickstand.dev/gate-timeout", timeout);
    let on = seen_at(31_536_000).on(pod);
    assert!(on.starts_with("say held 30m"), "{on}");
}

#[test]
fn a_gate_that_opens_by_time_says_who_is_not_ready_and_why() {
    let pod = held().sidecar(c("sidecar-db").exited(1)).sidecar(c("vault-agent").waiting("ImagePullBackOff"));
    insta::assert_snapshot!(seen_at(600).says_of(pod), @"KickstandGateOpenedUnready: the first step starts although it was held for 10m (its limit), and sidecar-web runs, but its readinessProbe (httpGet :8080/healthz) has not succeeded yet; vault-agent is waiting (ImagePullBackOff); sidecar-db ended with exit code 1 and will not be started again");
}

#[test]
fn the_gate_opens_while_a_later_step_is_still_pulled() {
    let pod = held_without_need().step(c("two").waiting("ImagePullBackOff"));
    assert_eq!(seen_at(10).on(pod), "open");
}

#[test]
fn readiness_lost_after_opening_is_nothing() {
    let pod = pod()
        .opened()
        .annotated("kickstand.dev/nudged", "2026-01-01T10:00:11Z")
        .step(c("one").ready())
        .sidecar(c("sidecar-web").readiness_probe().running());
    assert_eq!(seen_at(20).on(pod), "nothing");
}

#[test]
fn before_tekton_0_63_a_pod_behind_its_gate_is_ended_ten_seconds_after_the_verdict() {
    let old = held().old_tekton();
    assert_eq!(seen_at(18).failed(9).on(old.clone()), "nothing; again at 19");
    assert_eq!(seen_at(19).failed(9).on(old.clone()), "end");
    let first_seen = seen_at(19).failed(9).verdict_first_seen(12);
    assert_eq!(first_seen.on(old), "nothing; again at 22", "by our own clock if we know it");
}

#[test]
fn a_verdict_without_a_time_counts_from_when_it_was_first_seen() {
    for outcome in [Outcome::Gone, Outcome::Superseded] {
        let seen = |now: i64| seen_at(now).recorded(outcome, None);
        assert_eq!(seen(29).verdict_first_seen(20).on(held()), "nothing; again at 30");
        assert_eq!(seen(30).verdict_first_seen(20).on(held()), "end");
        assert_eq!(seen(30).on(held()), "nothing; again at 40", "just now, if nobody remembers");
    }
}

#[test]
fn a_verdict_from_the_future_holds_at_once() {
    // Tekton's clock is ahead of ours.
    assert_eq!(seen_at(9).failed(3600).on(held()), "end");
    assert_eq!(at(9), seen_at(9).now);
}

/// The gate opened at 10, and the step has not ended.
fn opened() -> Build {
    pod().opened().step(c("one").ready()).sidecar(c("sidecar-web").ready())
}

#[rstest]
#[case::not_at_once(seen_at(10), opened(), "nothing; again at 11")]
#[case::a_second_after_it_opened(seen_at(11), opened(), "nudge")]
#[case::by_a_controller_that_took_over(seen_at(70), opened(), "nudge")]
#[case::also_when_its_sidecars_are_left_alone(seen_at(11), opened().annotated("kickstand.dev/stop", "false"), "nudge")]
#[case::also_when_it_was_released_by_an_opt_out(seen_at(11), opened().opted_out(), "nudge")]
#[case::once(seen_at(12), opened().annotated("kickstand.dev/nudged", "2026-01-01T10:00:11Z"), "nothing")]
#[case::not_once_the_kubelet_came_by_itself(seen_at(100), opened(), "nothing")]
#[case::not_when_the_step_has_ended(seen_at(11), pod().opened().step(c("one").exited(0)).sidecar(c("sidecar-web").ready()), "nothing")]
#[case::not_under_an_old_tekton_which_takes_it_for_a_conflict(seen_at(11), opened().old_tekton(), "nothing")]
#[case::not_at_a_time_that_is_not_ours(seen_at(11), opened().annotated("kickstand.dev/ready", "yes"), "nothing")]
#[case::not_where_no_gate_is(seen_at(11), pod().annotated("kickstand.dev/ready", "2026-01-01T10:00:10Z").step(c("one").ready()), "nothing")]
fn the_kubelet_is_made_to_look_at_an_open_gate_once_more(
    #[case] seen: Seen,
    #[case] pod: Build,
    #[case] expected: &str,
) {
    assert_eq!(seen.on(pod), expected);
}
