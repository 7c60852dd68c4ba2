//! The steps are done.

use rstest::rstest;

use super::build::{Build, C, NOP, at, c, pod};
use super::{Seen, finished, seen_at};
use crate::pod::decide::steps_done_at;
use crate::pod::verdict::{Outcome, Verdict};

/// One step that succeeded, and these beside it.
fn done_with<const N: usize>(sidecars: [C; N]) -> Build {
    sidecars.into_iter().fold(pod().step(c("one").exited(0)), Build::sidecar)
}

/// The run succeeded a second after its step.
fn judged(now: i64) -> Seen {
    seen_at(now).succeeded(61)
}

/// Tekton has recorded the end of the steps, and gives no verdict.
fn withheld(now: i64) -> Seen {
    Seen { verdict: Verdict::Withheld, ..seen_at(now) }
}

// When the steps are done.

#[rstest]
#[case::every_step_has_ended(pod().step(c("one").exited_at(0, 40)).step(c("two").exited_at(1, 50)), Some(50))]
#[case::not_while_one_runs(pod().step(c("one").exited(0)).step(c("two").running()), None)]
#[case::not_while_one_has_not_started(pod().step(c("one").exited(0)).step(c("two")), None)]
#[case::not_while_one_is_held_at_a_breakpoint(pod().step(c("one").ready()).step(c("two").exited(1)), None)]
#[case::not_while_one_is_to_be_restarted(pod().step(c("one").rule("In", &[42]).exited(42)), None)]
#[case::not_in_a_pod_that_restarts_what_failed(pod().policy("OnFailure").step(c("one").exited(1)), None)]
#[case::in_a_pod_that_restarts_only_what_failed(pod().policy("OnFailure").step(c("one").exited(0)), Some(60))]
#[case::not_in_a_pod_that_restarts_everything(pod().policy("Always").step(c("one").exited(0)), None)]
#[case::a_steps_own_policy_comes_first(pod().policy("Always").step(c("one").policy("Never").exited(0)), Some(60))]
#[case::one_that_never_ran_ended_no_earlier_than_the_pod_began(pod().step(c("one").start_error()), Some(0))]
#[case::one_that_never_ran_beside_one_that_did(pod().step(c("one").exited(1)).step(c("two").start_error()), Some(60))]
#[case::a_pod_without_steps_is_never_done(pod().sidecar(c("web").exited(0)), None)]
fn the_steps_are_done(#[case] pod: Build, #[case] expected: Option<i64>) {
    assert_eq!(steps_done_at(&pod.build()), expected.map(at));
}

// Whether something is stopped.

#[rstest]
#[case::after_the_verdict(judged(61), "stop sidecar-web by nop, or end")]
#[case::even_a_day_later(judged(86_400), "stop sidecar-web by nop, or end")]
#[case::after_a_failure(seen_at(61).failed(61), "stop sidecar-web by Ended, or end")]
#[case::of_an_attempt_that_is_tried_again(
    seen_at(61).recorded(Outcome::Superseded, Some(61)), "stop sidecar-web by Ended, or end"
)]
#[case::of_a_run_that_is_gone_ten_seconds_later(
    seen_at(71).recorded(Outcome::Gone, None).verdict_first_seen(61), "stop sidecar-web by nop, or end"
)]
#[case::but_not_before_the_verdict(seen_at(61), "nothing")]
#[case::however_long_it_takes(seen_at(86_400), "nothing")]
fn a_running_sidecar_is_stopped(#[case] seen: Seen, #[case] expected: &str) {
    assert_eq!(seen.on(finished()), expected);
    assert_eq!(seen.on(finished().opened()), expected, "the same behind a gate that has opened");
}

#[rstest]
#[case::while_a_step_runs(pod().step(c("one").exited(0)).step(c("two").running()).sidecar(c("web").ready()))]
#[case::while_a_step_is_held_at_a_breakpoint(pod().step(c("one").ready()).sidecar(c("web").ready()))]
#[case::when_it_ended_by_itself(done_with([c("web").exited(0)]))]
#[case::when_it_failed_by_itself(done_with([c("web").exited(1)]))]
#[case::when_there_is_none(done_with([]))]
fn nothing_is_stopped(#[case] pod: Build) {
    assert_eq!(judged(70).on(pod.clone()), "nothing");
    assert_eq!(seen_at(70).failed(61).on(pod), "nothing");
}

#[rstest]
#[case::the_results_sidecar(c("sidecar-tekton-log-results").running())]
#[case::the_bucket_mount(c("gke-gcsfuse-sidecar").running())]
fn one_that_ends_by_itself_is_left_alone(#[case] sidecar: C) {
    assert_eq!(judged(86_400).on(done_with([sidecar.clone()])), "nothing");
    let beside_a_proxy = done_with([sidecar, c("istio-proxy").ready()]);
    assert_eq!(judged(61).on(beside_a_proxy), "stop istio-proxy by Ended, or end", "and nobody waits for it");
}

#[test]
fn native_sidecars_are_left_to_the_kubelet() {
    let native_only = pod().step(c("one").exited(0)).native(c("istio-proxy").ready()).native(c("sidecar-web").ready());
    assert_eq!(judged(86_400).on(native_only.clone()), "nothing");
    assert_eq!(withheld(86_400).on(native_only), "nothing");
}

#[test]
fn an_ignored_sidecar_is_left_alone() {
    let pod = done_with([c("sidecar-web").ready(), c("vault-agent").ready(), c("istio-proxy").ready()])
        .annotated("kickstand.dev/ignore", " web , vault-agent,");
    assert_eq!(judged(61).on(pod), "stop istio-proxy by Ended, or end", "and no proxy waits for it");
}

#[rstest]
#[case::by_nop(c("sidecar-web").image(NOP).ready())]
#[case::by_name(c("sidecar-web").image("kickstand.dev/Ended").ready())]
#[case::by_tekton(c("sidecar-web").image("registry.example/tekton/nop@sha256:0123").ready())]
fn one_that_was_stopped_is_left_alone(#[case] sidecar: C) {
    assert_eq!(judged(62).on(done_with([sidecar])), "nothing; again at 211");
}

#[test]
fn one_stopped_by_an_older_nop_image_of_ours_is_recognised_by_our_note() {
    let older = done_with([c("sidecar-web").image("registry.example/kickstand/nop:1").ready()]);
    assert_eq!(judged(62).on(older.clone()), "stop sidecar-web by nop, or end");
    assert_eq!(judged(62).on(older.stopped("sidecar-web", "registry.example/web:1", 62)), "nothing; again at 212");
}

/// Seen live: Tekton stopped a sidecar first, by a nop image whose name we were not told, and put it back after each stop
/// of ours; the note then named Tekton's nop as what the sidecar had run.
#[test]
fn no_sidecar_is_stopped_twice_even_if_somebody_puts_its_image_back() {
    let pod = finished().stopped("sidecar-web", "registry.example/sidecar-web:1", 62);
    assert_eq!(judged(62).on(pod), "nothing; again at 212");
}

// How.

#[rstest]
#[case::one_that_is_known_to_exit_0_keeps_its_logs(c("istio-proxy"), "Ended")]
#[case::one_told_to_exit_0(c("csql-db").env("CSQL_PROXY_EXIT_ZERO_ON_SIGTERM", "true"), "Ended")]
#[case::one_told_to_exit_0_by_argument(c("cloud-sql-proxy").args(&["--exit-zero-on-sigterm"]), "Ended")]
#[case::one_that_could_be_told_but_was_not(c("csql-db"), "nop")]
#[case::any_other(c("sidecar-web"), "nop")]
#[case::one_with_a_shell(c("sidecar-web").command(&["sh", "-c", "serve"]), "nop")]
#[case::one_with_a_script(c("sidecar-web").command(&["/tekton/scripts/sidecar-script-0"]), "nop")]
#[case::one_whose_command_nop_does_not_have(c("sidecar-web").uncovered(), "Ended")]
fn in_a_green_run_a_sidecar_ends_by(#[case] sidecar: C, #[case] how: &str) {
    let stop = format!("stop {} by {how}, or end", sidecar.name());
    assert_eq!(judged(61).on(done_with([sidecar.ready()])), stop);
}

#[rstest]
#[case::the_run_failed(seen_at(61).failed(61), finished())]
#[case::the_attempt_failed(seen_at(61).recorded(Outcome::Superseded, Some(61)), finished())]
#[case::a_step_failed_though_the_run_goes_on(judged(61), pod().step(c("one").exited(1)).sidecar(c("sidecar-web").ready()))]
#[case::it_is_asked_for(judged(61), finished().annotated("kickstand.dev/keep-logs", "true"))]
fn logs_are_kept_if(#[case] seen: Seen, #[case] pod: Build) {
    assert_eq!(seen.on(pod), "stop sidecar-web by Ended, or end");
}

#[rstest]
#[case::in_a_pod_that_restarts_what_failed(c("sidecar-web").policy("OnFailure"), "by nop")]
#[case::even_one_that_exits_0(c("istio-proxy").policy("OnFailure"), "by nop")]
#[case::one_that_nop_does_not_cover(c("sidecar-web").policy("OnFailure").uncovered(), "end")]
#[case::one_that_starts_again_whatever_it_exits_with(c("sidecar-web").policy("Always"), "end")]
#[case::one_with_a_policy_that_is_not_known(c("sidecar-web").policy("Sometimes"), "end")]
#[case::one_that_a_rule_restarts_on_failure(c("sidecar-web").rule("NotIn", &[0]), "by nop")]
#[case::one_that_a_rule_restarts_on_success(c("sidecar-web").rule("In", &[0]), "end")]
#[case::one_that_a_rule_restarts_on_anything_else(c("sidecar-web").rule("NotIn", &[3]), "end")]
fn where_restarts_are_possible_the_unparsable_name_is_not_used(#[case] sidecar: C, #[case] expected: &str) {
    for seen in [judged(61), seen_at(61).failed(61)] {
        let on = seen.on(done_with([sidecar.clone().ready()]));
        assert!(on.contains(expected) && !on.contains("Ended"), "{on}");
    }
}

#[test]
fn a_containers_own_policy_comes_before_the_pods() {
    let of = |pod_policy: &str, own: Option<&str>| {
        let sidecar = c("istio-proxy").ready();
        let sidecar = own.map_or(sidecar.clone(), |own| sidecar.policy(own));
        let step = c("one").policy("Never").exited(0);
        judged(61).on(pod().policy(pod_policy).step(step).sidecar(sidecar))
    };
    assert_eq!(of("Never", None), "stop istio-proxy by Ended, or end");
    assert_eq!(of("OnFailure", None), "stop istio-proxy by nop, or end");
    assert_eq!(of("OnFailure", Some("Never")), "stop istio-proxy by Ended, or end");
    assert_eq!(of("Never", Some("OnFailure")), "stop istio-proxy by nop, or end");
    assert_eq!(of("Always", Some("Never")), "stop istio-proxy by Ended, or end");
    assert_eq!(of("Always", None), "end");
}

#[rstest]
#[case::by_its_own_policy(finished_under("OnFailure"))]
#[case::by_a_rule(done_with([c("sidecar-web").rule("In", &[42]).ready()]))]
fn with_keep_logs_one_that_may_be_restarted_is_ended_with_its_pod(#[case] pod: Build) {
    let pod = pod.annotated("kickstand.dev/keep-logs", "true");
    assert_eq!(seen_at(61).on(pod.clone()), "nothing");
    assert_eq!(judged(61).on(pod), "end");
}

#[test]
fn one_that_nothing_stops_is_ended_with_its_pod_and_that_is_said() {
    let kept = finished_under("OnFailure").annotated("kickstand.dev/keep-logs", "true");
    insta::assert_snapshot!(judged(61).says_of(kept), @"KickstandPodEnded: the steps are done, and sidecar-web cannot be stopped with its logs kept: the pod is ended");
    insta::assert_snapshot!(judged(61).says_of(done_with([c("sidecar-web").policy("Always").ready()])), @"KickstandPodEnded: the steps are done, and sidecar-web would be started again: the pod is ended");
}

#[test]
fn between_two_starts_of_a_crash_loop_a_sidecar_is_as_good_as_running() {
    let looping = c("sidecar-web").policy("OnFailure").waiting("CrashLoopBackOff").restarted(3, 1);
    assert_eq!(judged(61).on(done_with([looping])), "stop sidecar-web by nop, or end");
    let about_to_restart = c("sidecar-web").policy("OnFailure").exited(1);
    assert_eq!(judged(61).on(done_with([about_to_restart])), "stop sidecar-web by nop, or end");
}

// In which order.

#[test]
fn helpers_end_first_and_proxies_once_no_helper_runs() {
    let with = |helper: C| done_with([c("istio-proxy").ready(), helper, c("linkerd-proxy").ready()]);
    let proxies = "stop istio-proxy by Ended, linkerd-proxy by nop, or end";
    assert_eq!(judged(61).on(with(c("vault-agent").ready())), "stop vault-agent by Ended, or end");
    let dying = c("vault-agent").image("kickstand.dev/Ended").ready();
    assert_eq!(judged(62).on(with(dying)), "nothing; again at 211", "still dying");
    let dying = c("sidecar-web").image(NOP).ready();
    assert_eq!(judged(62).on(with(dying)), "nothing; again at 211", "status lags behind the spec");
    let crashing = c("sidecar-web").policy("OnFailure").waiting("CrashLoopBackOff").restarted(3, 1);
    assert_eq!(judged(61).on(with(crashing)), "stop sidecar-web by nop, or end");
    assert_eq!(judged(62).on(with(c("vault-agent").exited(0))), proxies);
    assert_eq!(judged(62).on(with(c("vault-agent").exited(137))), proxies);
    let unpulled = c("sidecar-web").policy("OnFailure").image(NOP).waiting("ErrImagePull").restarted(0, 137);
    assert_eq!(
        judged(62).on(with(unpulled)),
        format!("{proxies}; again at 211"),
        "nop was not pulled, the helper is dead"
    );
    assert_eq!(judged(62).on(with(c("gke-gcsfuse-sidecar").ready())), proxies, "it waits for everybody else");
}

#[test]
fn all_of_one_role_are_stopped_in_one_patch() {
    let helpers = done_with([c("sidecar-web").ready(), c("vault-agent").ready(), c("sidecar-old").exited(0)]);
    assert_eq!(judged(61).on(helpers.clone()), "stop sidecar-web by nop, vault-agent by Ended, or end");
    insta::assert_snapshot!(judged(61).says_of(helpers), @"KickstandSidecarsStopped: the steps are done: stopped sidecar-web (by nop), vault-agent (logs kept)");
}

#[test]
fn a_deaf_helper_costs_its_grace_and_then_the_proxy_is_stopped() {
    let with = |helper: C| done_with([helper.image(NOP), c("istio-proxy").ready()]).stopped("sidecar-web", "web:1", 62);
    assert_eq!(judged(91).on(with(c("sidecar-web").ready())), "nothing; again at 212");
    assert_eq!(judged(93).on(with(c("sidecar-web").exited(0))), "stop istio-proxy by Ended, or end");
    assert_eq!(judged(212).on(with(c("sidecar-web").ready())), "end", "the kubelet cannot kill it");
}

// Time to finish.

#[test]
fn one_in_finish_may_run_on_and_is_stopped_then() {
    let pod = done_with([c("sidecar-uploader").ready(), c("istio-proxy").ready()])
        .annotated("kickstand.dev/finish", "uploader=90s");
    assert_eq!(judged(61).on(pod.clone()), "nothing; again at 150", "and its network stays");
    assert_eq!(judged(149).on(pod.clone()), "nothing; again at 150");
    assert_eq!(judged(150).on(pod), "stop sidecar-uploader by nop, or end");
}

#[test]
fn other_helpers_do_not_wait_for_one_in_finish() {
    let pod = done_with([c("sidecar-uploader").ready(), c("sidecar-web").ready(), c("istio-proxy").ready()])
        .annotated("kickstand.dev/finish", "uploader=90s");
    // Nor does a refused stop end the pod under it.
    assert_eq!(judged(61).on(pod), "stop sidecar-web by nop; again at 150");
}

#[test]
fn one_in_finish_that_has_ended_is_not_waited_for() {
    let pod = done_with([c("sidecar-uploader").exited(0), c("istio-proxy").ready()])
        .annotated("kickstand.dev/finish", "uploader=90s");
    assert_eq!(judged(61).on(pod), "stop istio-proxy by Ended, or end");
}

#[test]
fn a_pod_is_not_ended_under_one_that_has_time_to_finish() {
    let unstoppable = done_with([c("sidecar-uploader").ready(), c("sidecar-web").policy("Always").ready()])
        .annotated("kickstand.dev/finish", "uploader=10m");
    assert_eq!(judged(61).on(unstoppable.clone()), "nothing; again at 660");
    assert_eq!(judged(660).on(unstoppable), "end");
    let deaf = done_with([c("sidecar-uploader").ready(), c("sidecar-web").image(NOP).ready()])
        .annotated("kickstand.dev/finish", "uploader=10m");
    assert_eq!(judged(400).on(deaf.clone()), "nothing; again at 660");
    assert_eq!(judged(660).on(deaf), "end");
}

#[test]
fn one_with_endless_time_to_finish_is_never_stopped() {
    let pod = finished().annotated("kickstand.dev/finish", "web=99999999h");
    assert_eq!(judged(86_400).on(pod), "nothing");
}

// Without a verdict.

#[rstest]
#[case::at_first(69, "nothing; again at 70")]
#[case::after_ten_seconds(70, "stop istio-proxy by nop")]
fn a_classic_sidecar_that_keeps_a_native_one_and_so_the_run_from_ending_is_stopped(
    #[case] now: i64,
    #[case] expected: &str,
) {
    let deadlock = done_with([c("istio-proxy").ready()]).native(c("sidecar-web").ready());
    assert_eq!(withheld(now).on(deadlock), expected);
}

#[test]
fn a_tekton_that_has_not_recorded_the_end_of_the_steps_is_away_or_slow_and_is_waited_for() {
    for sidecar in [c("istio-proxy"), c("helper"), c("helper").uncovered()] {
        let pod = done_with([sidecar.ready()]).native(c("sidecar-web").ready());
        assert_eq!(seen_at(86_400).on(pod.clone()), "nothing");
        assert_ne!(withheld(86_400).on(pod), "nothing");
    }
}

#[test]
fn without_a_verdict_each_is_stopped_in_the_way_likeliest_to_end_clean() {
    let deadlock = |sidecar: C| done_with([sidecar.ready()]).native(c("sidecar-web").ready());
    let early = |sidecar: C| withheld(70).on(deadlock(sidecar));
    assert_eq!(early(c("helper")), "stop helper by nop");
    assert_eq!(early(c("helper").policy("OnFailure")), "stop helper by nop");
    assert_eq!(early(c("vault-agent").uncovered()), "stop vault-agent by Ended", "known to exit 0");
    // One that may end in error fails the run if Tekton is merely slow: not before two minutes.
    assert_eq!(early(c("helper").uncovered()), "nothing; again at 180");
    assert_eq!(withheld(180).on(deadlock(c("helper").uncovered())), "stop helper by Ended");
    // And one that neither way ends is left: the pod cannot be ended before the verdict.
    assert_eq!(withheld(900).on(deadlock(c("helper").policy("Always"))), "nothing");
    assert_eq!(withheld(900).on(deadlock(c("helper").policy("OnFailure").uncovered())), "nothing");
    insta::assert_snapshot!(withheld(70).says_of(deadlock(c("istio-proxy"))), @"KickstandSidecarsStopped: the steps are done, and nothing else would end the pod: stopped istio-proxy (by nop)");
}

#[test]
fn without_a_verdict_keep_logs_and_a_failed_step_do_not_spoil_the_phase() {
    let deadlock = done_with([c("helper").ready()]).native(c("sidecar-web").ready());
    assert_eq!(withheld(70).on(deadlock.annotated("kickstand.dev/keep-logs", "true")), "stop helper by nop");
    let failed = pod().step(c("one").exited(1)).sidecar(c("helper").ready()).native(c("sidecar-web").ready());
    assert_eq!(withheld(70).on(failed), "stop helper by nop");
}

#[test]
fn without_a_verdict_a_stop_that_somebody_undid_is_tried_again_two_minutes_later() {
    let undone = |at: i64| {
        done_with([c("helper").ready()]).native(c("sidecar-web").ready()).stopped(
            "helper",
            "registry.example/helper:1",
            at,
        )
    };
    assert_eq!(withheld(71).on(undone(70)), "nothing; again at 190");
    assert_eq!(withheld(190).on(undone(70)), "stop helper by nop");
    assert_eq!(seen_at(190).on(undone(70)), "nothing", "as long as Tekton has not seen the end of the steps");
    assert_eq!(withheld(200).on(undone(190)), "nothing; again at 310");
    let stopped = done_with([c("helper").image(NOP).ready()]).native(c("sidecar-web").ready());
    assert_eq!(withheld(900).on(stopped.stopped("helper", "h:1", 70)), "nothing", "one that was not undone");
}

#[test]
fn without_a_verdict_helpers_end_first_too() {
    let deadlock = done_with([c("istio-proxy").ready(), c("helper").ready()]).native(c("sidecar-web").ready());
    assert_eq!(withheld(70).on(deadlock), "stop helper by nop");
    let dying = done_with([c("istio-proxy").ready(), c("helper").image(NOP).ready()]).native(c("sidecar-web").ready());
    assert_eq!(withheld(80).on(dying), "nothing", "and nothing is ended");
}

#[test]
fn an_old_tekton_waits_for_no_native_sidecar_and_is_left_its_time() {
    let pod = done_with([c("istio-proxy").ready()]).native(c("sidecar-web").ready()).old_tekton();
    assert_eq!(withheld(900).on(pod), "nothing");
}

#[test]
fn a_native_sidecar_that_has_ended_keeps_nobody() {
    let pod = done_with([c("istio-proxy").ready()]).native(c("sidecar-web").exited(0));
    assert_eq!(withheld(900).on(pod), "nothing");
}

// Pending: one never started.

#[rstest]
#[case::that_cannot_be_pulled(c("sidecar-web").waiting("ImagePullBackOff"), 10)]
#[case::that_cannot_be_made(c("sidecar-web").waiting("CreateContainerConfigError"), 10)]
#[case::that_is_still_pulled(c("sidecar-web").waiting("ContainerCreating"), 120)]
#[case::that_has_no_status(c("sidecar-web"), 120)]
fn a_sidecar_that_never_started_is_replaced(#[case] sidecar: C, #[case] patience: i64) {
    let pod = done_with([sidecar]);
    assert_eq!(seen_at(59 + patience).on(pod.clone()), format!("nothing; again at {}", 60 + patience));
    assert_eq!(seen_at(60 + patience).on(pod.clone()), "stop sidecar-web by nop");
    assert_eq!(judged(61).on(pod), "stop sidecar-web by nop, or end", "at once, if there is a verdict");
}

#[test]
fn beside_a_sidecar_that_never_started_no_other_is_stopped() {
    let pod = done_with([c("sidecar-web").waiting("ImagePullBackOff"), c("helper").ready(), c("istio-proxy").ready()]);
    assert_eq!(seen_at(900).on(pod.clone()), "stop sidecar-web by nop");
    insta::assert_snapshot!(seen_at(900).says_of(pod.clone()), @"KickstandSidecarsStopped: the steps are done: replaced what never started: sidecar-web (by nop)");
    let replaced = done_with([c("sidecar-web").image(NOP).waiting("ContainerCreating"), c("helper").ready()]);
    assert_eq!(seen_at(900).on(replaced), "nothing", "the pod is Running in a moment, and Tekton judges it");
    let deadlock = pod.native(c("sidecar-db").ready());
    assert_eq!(withheld(900).on(deadlock), "stop sidecar-web by nop");
}

#[test]
fn one_that_never_started_and_that_nop_cannot_stand_in_for_is_left_until_the_verdict() {
    let pod = |sidecar: C| done_with([sidecar.uncovered().waiting("ImagePullBackOff")]);
    assert_eq!(seen_at(86_400).on(pod(c("sidecar-web"))), "nothing");
    assert_eq!(judged(61).on(pod(c("sidecar-web"))), "stop sidecar-web by nop, or end", "it ends, in error");
    assert_eq!(seen_at(86_400).on(pod(c("sidecar-web").policy("OnFailure"))), "nothing");
    assert_eq!(judged(61).on(pod(c("sidecar-web").policy("OnFailure"))), "end", "it would be tried for ever");
}

#[rstest]
#[case::one_that_is_ignored("kickstand.dev/ignore", "web")]
#[case::one_that_has_time_to_finish("kickstand.dev/finish", "web=99999999h")]
fn left_alone_even_if_it_never_started(#[case] key: &str, #[case] value: &str) {
    let pod = done_with([c("sidecar-web").waiting("ImagePullBackOff")]).annotated(key, value);
    assert_eq!(seen_at(900).on(pod.clone()), "nothing");
    assert_eq!(judged(900).on(pod), "nothing");
}

// What does not end.

#[rstest]
#[case::one(1, 30, 150)]
#[case::two(2, 30, 180)]
#[case::with_its_own_grace(1, 100, 220)]
#[case::without_grace(1, 0, 120)]
#[case::with_a_grace_out_of_reason(1, i64::MAX, 86_520)]
#[case::with_a_negative_grace(1, -5, 120)]
fn what_was_stopped_has_two_minutes_and_the_sum_of_its_grace(
    #[case] count: usize,
    #[case] grace: i64,
    #[case] allowed: i64,
) {
    let stopped = ["sidecar-a", "sidecar-b"].into_iter().take(count);
    let pod = stopped.fold(pod().step(c("one").exited(0)), |pod, name| pod.sidecar(c(name).image(NOP).ready()));
    let pod = pod.stopped("sidecar-a", "a:1", 100).set("/spec/terminationGracePeriodSeconds", grace.into());
    let due = 100 + allowed;
    assert_eq!(judged(due - 1).on(pod.clone()), format!("nothing; again at {due}"));
    assert_eq!(judged(due).on(pod), "end");
}

#[test]
fn what_tekton_stopped_has_its_time_from_the_verdict() {
    let pod = done_with([c("sidecar-web").image("registry.example/tekton/nop:1").ready()]);
    assert_eq!(judged(210).on(pod.clone()), "nothing; again at 211");
    assert_eq!(judged(211).on(pod.clone()), "end");
    insta::assert_snapshot!(judged(211).says_of(pod), @"KickstandPodEnded: sidecar-web did not end after being stopped: the pod is ended");
}

#[test]
fn what_was_stopped_before_the_verdict_has_its_time_from_the_verdict() {
    let pod = done_with([c("helper").image(NOP).ready()]).native(c("sidecar-web").ready()).stopped("helper", "h:1", 70);
    assert_eq!(withheld(900).on(pod.clone()), "nothing");
    assert_eq!(seen_at(900).succeeded(899).on(pod), "nothing; again at 1049");
}

#[rstest]
#[case::waiting_for_its_image(c("sidecar-web").image(NOP).waiting("ImagePullBackOff"))]
#[case::crashing_as_nop(c("sidecar-web").policy("OnFailure").image(NOP).waiting("CrashLoopBackOff").restarted(4, 128))]
#[case::waiting_under_a_name_that_cannot_be_parsed(
    c("sidecar-web").policy("OnFailure").image("kickstand.dev/Ended").waiting("InvalidImageName").restarted(0, 137)
)]
fn one_that_waits_after_its_stop_is_ended_too(#[case] sidecar: C) {
    assert_eq!(judged(211).on(done_with([sidecar])), "end");
}

#[rstest]
#[case::an_image_that_cannot_be_pulled(pod().step(c("one").waiting("ImagePullBackOff")).sidecar(c("web").ready()))]
#[case::a_step_without_status(pod().step(c("one").exited(0)).step(c("two")))]
#[case::tektons_signal(pod().tekton_waits(false).step(c("one").ready()).sidecar(c("sidecar-web").running()))]
#[case::tektons_signal_behind_our_open_gate(
    pod().tekton_waits(false).opened().step(c("one").ready()).sidecar(c("sidecar-web").running())
)]
fn a_step_that_never_starts_is_given_two_minutes_after_the_verdict_for(#[case] pod: Build) {
    assert_eq!(seen_at(900).on(pod.clone()), "nothing");
    assert_eq!(seen_at(129).failed(10).on(pod.clone()), "nothing; again at 130");
    assert_eq!(seen_at(130).failed(10).on(pod.clone()), "end");
    assert_eq!(seen_at(139).failed(10).on(pod.clone().old_tekton()), "nothing; again at 140");
    assert_eq!(seen_at(140).failed(10).on(pod.old_tekton()), "end");
}

#[test]
fn a_pod_that_is_ended_for_a_step_that_never_started_says_so() {
    let unpulled = pod().step(c("one").waiting("ImagePullBackOff")).sidecar(c("web").ready());
    insta::assert_snapshot!(seen_at(130).failed(10).says_of(unpulled), @"KickstandPodEnded: the run is over and step-one never started: the pod is ended");
    let unsignalled = pod().tekton_waits(false).step(c("one").ready()).sidecar(c("sidecar-web").running());
    insta::assert_snapshot!(seen_at(130).failed(10).says_of(unsignalled), @"KickstandPodEnded: the run is over and its first step was never let go by Tekton: the pod is ended");
}

#[rstest]
#[case::its_step_runs(pod().step(c("one").running()).sidecar(c("sidecar-web").ready()))]
#[case::its_step_runs_since_tekton_let_it_go(pod().tekton_waits(true).step(c("one").running()))]
#[case::its_step_is_to_be_restarted(pod().step(c("one").policy("OnFailure").waiting("CrashLoopBackOff").restarted(1, 1)))]
fn a_judged_pod_is_left_alone_while(#[case] pod: Build) {
    assert_eq!(seen_at(86_400).failed(10).on(pod), "nothing");
}

// Old Tektons, and time.

#[test]
fn before_tekton_0_63_all_that_follows_a_verdict_comes_ten_seconds_after_it() {
    let old = finished().old_tekton();
    assert_eq!(judged(61).on(old.clone()), "nothing; again at 71");
    assert_eq!(judged(71).on(old.clone()), "stop sidecar-web by nop, or end");
    assert_eq!(judged(71).verdict_first_seen(65).on(old), "nothing; again at 75");
    let foreign = finished().set("/metadata/labels/tekton.dev~1taskRunUID", "another".into());
    assert_eq!(judged(61).on(foreign), "nothing; again at 71", "a label that names somebody else proves nothing");
}

#[test]
fn clocks_that_disagree_delay_no_stop() {
    assert_eq!(seen_at(61).succeeded(3600).on(finished()), "stop sidecar-web by nop, or end");
    assert_eq!(seen_at(61).succeeded(-3600).on(finished()), "stop sidecar-web by nop, or end");
}

fn finished_under(policy: &str) -> Build {
    done_with([c("sidecar-web").policy(policy).ready()])
}
