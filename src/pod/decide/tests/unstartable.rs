//! A native sidecar that cannot be started.

use rstest::rstest;

use super::build::{Build, C, c, pod};
use super::{Seen, seen_at};

fn unstartable(name: &str) -> C {
    c(name).readiness_probe().unstartable(2)
}

fn stuck_with(sidecar: C) -> Build {
    pod().gated().phase("Pending").native(sidecar).step(c("one").waiting("PodInitializing"))
}

fn stuck() -> Build {
    stuck_with(unstartable("sidecar-web"))
}

fn told(now: i64) -> Seen {
    seen_at(now).turned_classic("pod-uid", 40)
}

#[test]
fn its_task_run_is_turned_classic_then_the_pod_is_made_anew() {
    assert_eq!(seen_at(40).on(stuck()), "turn run-uid classic");
    assert_eq!(told(40).on(stuck()), "nothing; again at 48");
    assert_eq!(told(48).on(stuck()), "replace");
    insta::assert_snapshot!(told(48).says_of(stuck()), @"KickstandPodReplaced: sidecar-web cannot be started (exit code 128), and as a native sidecar it would hold every step: the pod is deleted before a step has started, so that Tekton makes it anew, with classic sidecars");
}

#[test]
fn a_pod_made_anew_is_not_deleted_again() {
    let again = seen_at(40).turned_classic("the pod before", 10);
    assert_eq!(again.on(stuck()), "say cannot start");
    insta::assert_snapshot!(again.says_of(stuck()), @"KickstandGateHeld: sidecar-web cannot be started (exit code 128), and as a native sidecar it holds every step, in a second pod, too. Mend its command, or annotate the TaskRun kickstand.dev/strategy: classic");
}

#[rstest]
#[case::whose_step_has_started(stuck().step(c("two").running()))]
#[case::whose_step_has_ended(stuck().step(c("two").exited(0)))]
#[case::beside_a_container_that_runs(stuck().sidecar(c("agent").running()))]
#[case::of_which_no_container_is_known(pod().gated().phase("Pending").native(unstartable("sidecar-web")).step(c("one")))]
#[case::that_runs(stuck().phase("Running"))]
#[case::of_an_old_tekton(stuck().old_tekton())]
#[case::that_tekton_made_native_for_an_injector(stuck_with(unstartable("istio-proxy")))]
#[case::with_a_start_of_its_own(stuck_with(unstartable("sidecar-web").startup_probe()))]
#[case::that_may_yet_start(stuck_with(c("sidecar-web").readiness_probe().unstartable(1)))]
#[case::that_has_run(stuck_with(c("sidecar-web").readiness_probe().waiting("CrashLoopBackOff").restarted(7, 1)))]
#[case::that_runs_now(stuck_with(unstartable("sidecar-web").running()))]
#[case::that_is_pulled(stuck_with(c("sidecar-web").readiness_probe().waiting("ImagePullBackOff")))]
fn no_other_pod_is_made_anew(#[case] pod: Build) {
    for seen in [seen_at(50), told(50)] {
        let decided = seen.on(pod.clone());
        assert!(
            !decided.contains("classic") && !decided.contains("replace") && !decided.contains("cannot"),
            "{decided}"
        );
    }
}

#[rstest]
#[case::over(told(50).failed(49), stuck(), "end")]
#[case::cancelled(told(50), stuck().cancelled(), "say cancelled")]
#[case::let_go(told(50), stuck().opted_out(), "open")]
#[case::released(told(50).leaving(), stuck(), "open")]
fn a_run_is_not_given_another_pod_once_it_is(#[case] seen: Seen, #[case] pod: Build, #[case] expected: &str) {
    assert_eq!(seen.on(pod), expected);
}
