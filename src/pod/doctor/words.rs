//! What an outcome means, and what to do next, in words.

use super::outcome::Outcome;
use super::{Around, Check, Finding, Lease, Level, Ours};
use crate::pod::contract::{INJECT, Settings};
use crate::pod::mutate::Ungated;
use crate::pod::native::{Off, Stays};
use crate::pod::refusals::WORDS;

/// What is, and what to do. `called`: others of the same samples were seen by the webhook.
pub(super) fn told(outcome: &Outcome, settings: &Settings, around: &Around, called: bool) -> Finding {
    let Around { namespace, home, .. } = around;
    match outcome {
        Outcome::Silent(why) => Finding::new(
            Level::Error,
            Check::Created,
            format!("dry runs are not answered: {why}"),
            "kubectl get --raw /readyz; a webhook that does not answer (its timeoutSeconds, its failurePolicy) holds up \
             every pod",
        )
        .passing(),
        Outcome::Refused(words) => refused(words, around),
        Outcome::NotCalled => not_called(around, called),
        Outcome::NotHeld(_) if !settings.gate => {
            Finding::ok(Check::Held, "the first step waits for nobody, as the annotation kickstand.dev/gate asks")
        }
        Outcome::NotHeld(Some(why)) => {
            let next = match why {
                why if *why == Ungated::NoController.to_string() => {
                    format!("kubectl -n {home} get pods: is a controller ready, and what does its log say?")
                }
                why if *why == Ungated::GatesRefused.to_string() => format!(
                    "kubectl -n {namespace} get events --field-selector reason=KickstandStopRefused: who refuses, and why?"
                ),
                _ => "if a TaskRun's own pod is as this one, report it, with `kubectl get pod -o yaml`".to_owned(),
            };
            let passes = *why == Ungated::NoController.to_string();
            let finding =
                Finding::new(Level::Error, Check::Held, format!("the first step does not wait: {why}"), next);
            if passes { finding.passing() } else { finding }
        }
        Outcome::NotHeld(None) => Finding::new(
            Level::Error,
            Check::Held,
            "the first step does not wait, though Kickstand's webhook was called and has not said why not",
            format!("a webhook that is called later took the gate away: {}", suspects(around)),
        ),
        Outcome::Stuck => Finding::new(
            Level::Error,
            Check::Held,
            "the first step would wait for ever: a later webhook took the gate's volume or mount away, and left the \
             argument",
            format!(
                "mend that webhook: {}; until then kubectl label namespace {namespace} {INJECT}=false",
                suspects(around)
            ),
        ),
        Outcome::Native => Finding::ok(Check::Native, "the declared sidecar is native: the kubelet starts and ends it"),
        Outcome::Mixed(names) => Finding::new(
            Level::Warning,
            Check::Native,
            format!("the declared sidecar is native, and beside it there are classic ones: {names}. Such pods end late"),
            "name its injector's mark in the chart's value knownSidecars (docs/sidecars.md), and declared ones stay \
             classic there",
        ),
        Outcome::Classic(why) => classic(why.as_deref(), settings, around),
    }
}

fn refused(words: &str, around: &Around) -> Finding {
    let Around { namespace, .. } = around;
    let error = |message: String, next: String| Finding::new(Level::Error, Check::Created, message, next);
    if words.contains(WORDS) {
        return error(
            format!(
                "the API server refuses pods with native sidecars here, since a webhook takes restartPolicy away from \
                 init containers: {words}"
            ),
            format!(
                "update that webhook (known ones: old releases of amazon-eks-pod-identity-webhook, kube-secrets-init, \
                 berglas): {}. Until then set the chart's value native.enabled=false; else a TaskRun with sidecars fails \
                 here every hour, after which they are classic again",
                suspects(around)
            ),
        );
    }
    if words.contains("cannot create resource \"pods\"") {
        return error(
            format!("a dry run needs the right to create pods: {words}"),
            format!("kubectl auth can-i create pods -n {namespace}: run it as somebody who may"),
        );
    }
    if words.contains("does not support dry run") {
        return error(
            format!("nothing could be tried: {words}"),
            "that webhook refuses every dry run of a pod; have it declare sideEffects: None, or try a namespace that it does \
             not select"
                .to_owned(),
        );
    }
    let finding = error(
        format!("the API server refuses the pod: {words}"),
        "this concerns the sample, not Kickstand: try another namespace, or give it what is asked for (--image, --annotate)"
            .to_owned(),
    );
    // A new namespace has no ServiceAccount yet.
    if words.contains("error looking up service account") { finding.passing() } else { finding }
}

fn not_called(around: &Around, at_times: bool) -> Finding {
    let Around { namespace, home, .. } = around;
    let label = around.labels.as_ref().map(|labels| labels.get(INJECT).map(String::as_str));
    let cover = format!("kubectl label namespace {namespace} {INJECT}=true --overwrite");
    let install = "install the chart, or `helm upgrade` it: it makes the webhook's configurations";
    let limits = "see the chart's values namespaces and watchNamespaces";
    let certificates = format!("kubectl -n {home} get pods: the controller fills the caBundle in; see its log");
    let answers = format!(
        "kubectl -n {home} get pods,endpointslices: are the webhook's pods ready? Can the API server reach their port \
         (10250; firewall, hostNetwork)? The API server's log says why the call fails"
    );
    let (message, next) = match (around.hooks.as_ref().map(|hooks| hooks.ours), label) {
        _ if at_times => ("the call fails at times, most likely".to_owned(), answers),
        (_, Some(Some("false"))) => {
            ("namespace opted out: it is labelled kickstand.dev/inject=false".to_owned(), cover)
        }
        (Some(Ours::Missing), _) => ("no configuration of Kickstand's webhook is there".to_owned(), install.to_owned()),
        (Some(Ours::Elsewhere), _) => ("this namespace is not covered".to_owned(), format!("{cover}; {limits}")),
        (Some(Ours::Untrusted), _) => ("its configuration has no caBundle".to_owned(), certificates),
        (Some(Ours::Asks), _) | (None, Some(Some("true"))) => ("the call fails, most likely".to_owned(), answers),
        (None, Some(_)) => (
            "the namespace is not covered, most likely: it has no label kickstand.dev/inject=true".to_owned(),
            format!("{cover}; {limits}"),
        ),
        (None, None) => (
            "the namespace is not covered, or the call fails".to_owned(),
            format!("kubectl get namespace {namespace} --show-labels; if need be {cover}. If it is covered: {answers}"),
        ),
    };
    Finding::new(Level::Error, Check::Called, format!("Kickstand's webhook was not called: {message}"), next).passing()
}

fn classic(why: Option<&str>, settings: &Settings, around: &Around) -> Finding {
    if let Some(key) = settings.ask_for_classic() {
        return Finding::ok(Check::Native, format!("the declared sidecar is classic, as the annotation {key} asks"));
    }
    let Some(why) = why else {
        let message = "the declared sidecar is classic, and the webhook has not said why";
        return Finding::new(
            Level::Warning,
            Check::Native,
            message,
            format!("see who changes it: {}", suspects(around)),
        );
    };
    if why == Off::Setting.to_string() {
        return Finding::ok(
            Check::Native,
            format!("the declared sidecar is classic, as the chart's values say: {why}"),
        );
    }
    let warning = |next: String| {
        let safe = "safe, but the pod ends seconds later";
        Finding::new(Level::Warning, Check::Native, format!("the declared sidecar is classic ({safe}): {why}"), next)
    };
    if why == Stays::Stripped.to_string() {
        return warning(format!("find the webhook that rewrites init containers, and update it: {}", suspects(around)));
    }
    let fresh = matches!(&around.lease, Lease::Held(_, facts) if facts.native(&around.namespace, None).is_ok());
    let stale = "the controller says otherwise by now: the webhook takes it in within seconds";
    if is(&Off::Cluster(String::new()), why) {
        return if fresh {
            warning(stale.to_owned()).passing()
        } else {
            warning("once API server and every node are new enough, it is native by itself".to_owned())
        };
    }
    if is(&Off::Refused(String::new()), why) {
        return if fresh { warning(stale.to_owned()).passing() } else { warning(refusals_next(around)) };
    }
    if is(&Off::Unknown, why) {
        return warning(unknown_next(around)).passing();
    }
    if why == Stays::NoController.to_string() {
        return warning(format!("kubectl -n {} get pods: is a controller ready?", around.home)).passing();
    }
    warning("docs/contract.md says when a pod is native".to_owned())
}

/// Is it that reason, whatever it names?
fn is(off: &Off, why: &str) -> bool {
    why.starts_with(&off.to_string())
}

fn unknown_next(around: &Around) -> String {
    format!(
        "just started? Else the controller's log (kubectl -n {} logs …) says what it cannot read: nodes, or the version",
        around.home
    )
}

fn refusals_next(around: &Around) -> String {
    format!(
        "find the webhook that takes restartPolicy away: {}. Then allow it again: docs/operations.md, \"Native \
         sidecars are switched off\"",
        suspects(around)
    )
}

/// What its Lease says.
pub(super) fn controller(around: &Around) -> Finding {
    let Around { namespace, home, .. } = around;
    let (holder, facts) = match &around.lease {
        Lease::Unread(why) => {
            let message = format!("what the controller says is not known: {why}");
            let next = format!("is Kickstand in namespace {home} (--kickstand-namespace)? May you read its Lease?");
            return Finding::new(Level::Warning, Check::Controller, message, next);
        }
        Lease::Held(holder, facts) => (holder, facts),
    };
    if holder.is_empty() {
        let next = format!("kubectl -n {home} get pods: is a controller ready, and what does its log say?");
        return Finding::new(Level::Error, Check::Controller, "no controller leads", next).passing();
    }
    match facts.native(namespace, None) {
        Ok(()) => {
            Finding::ok(Check::Controller, format!("{holder} leads, and says that native sidecars are possible here"))
        }
        Err(off) => {
            let (level, next) = match &off {
                Off::Unknown => (Level::Warning, unknown_next(around)),
                Off::Refused(_) => (Level::Warning, refusals_next(around)),
                Off::Cluster(_) | Off::Unstartable | Off::Setting => (Level::Ok, String::new()),
            };
            let message = format!("{holder} leads, and says: {off}");
            Finding { may_pass: off == Off::Unknown, ..Finding::new(level, Check::Controller, message, next) }
        }
    }
}

fn suspects(around: &Around) -> String {
    match around.hooks.as_ref().map(|hooks| hooks.others.as_slice()) {
        None | Some([]) => "kubectl get mutatingwebhookconfiguration lists who may".to_owned(),
        Some(others) => format!("it is one of the mutatingwebhookconfigurations {}", others.join(", ")),
    }
}
