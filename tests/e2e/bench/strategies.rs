//! A TaskRun's whole way, by who waits for its sidecar and who ends it: nobody (there is none), Tekton, Kickstand by the
//! classic strategy, Kickstand by the native one, and the kubelet with nobody's help, which is the floor.

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::say;
use super::table::{Part, Samples, markdown, ratio};
use crate::harness::case::TektonNop;
use crate::harness::injector::Order;
use crate::harness::istio;
use crate::harness::lab::Lab;
use crate::harness::scene::{Scene, Skip};
use crate::harness::story::{Story, seconds};
use crate::harness::taskrun::{Sidecar, TaskRun, ask};
use crate::harness::tekton;
use kickstand::pod::contract::{INJECT, READY};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum With {
    Nothing,
    Declared,
    /// By this program's own webhook, after ours: it stays classic.
    Injected,
    Istio,
    /// By Istio's own annotation.
    IstioClassic,
}

impl With {
    fn is_istio(self) -> bool {
        matches!(self, Self::Istio | Self::IstioClassic)
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug, Serialize)]
struct Way {
    what: &'static str,
    with: With,
    kickstand: bool,
    /// What its end is compared with.
    floor: bool,
    /// What its whole way is compared with.
    peer: bool,
}

const fn way(what: &'static str, with: With, kickstand: bool) -> Way {
    Way { what, with, kickstand, floor: false, peer: false }
}

/// Under Tekton's defaults: it waits for sidecars, and stops them.
const DEFAULTS: [Way; 6] = [
    way("no sidecar", With::Nothing, false),
    Way { peer: true, ..way("declared: Tekton's defaults", With::Declared, false) },
    way("declared: Kickstand, native", With::Declared, true),
    Way { peer: true, ..way("Istio: Tekton's defaults, a classic proxy", With::IstioClassic, false) },
    way("Istio: Tekton's and Istio's defaults, a native proxy", With::Istio, false),
    way("Istio: Kickstand, a native proxy", With::Istio, true),
];
/// Tekton neither waits nor stops, and makes declared sidecars native.
const ALONE: [Way; 4] = [
    Way { floor: true, ..way("declared: the floor, native, and nobody waits", With::Declared, false) },
    way("injected: Kickstand, classic", With::Injected, true),
    Way { floor: true, ..way("Istio: the floor, a native proxy, and nobody waits", With::Istio, false) },
    way("Istio: Kickstand, a classic proxy", With::IstioClassic, true),
];

#[derive(Default, Serialize)]
struct Numbers {
    /// A watch showed the pod → the step's own start.
    start: Samples,
    /// A watch showed the sidecar ready → the step's own start.
    gate: Samples,
    /// A watch showed the steps done → it showed the pod ended.
    end: Samples,
    /// A watch showed the pod → it showed the pod ended.
    whole: Samples,
    succeeded: usize,
}

pub(crate) async fn measure(lab: &Lab, runs: usize) -> Result<Part> {
    let has_istio = match istio::prepare(lab).await {
        Ok(()) => true,
        Err(error) => {
            say(&error.downcast::<Skip>()?.to_string());
            false
        }
    };
    let mut all = Vec::new();
    for (ways, flags) in [
        (DEFAULTS.as_slice(), [].as_slice()),
        (&ALONE, &[("await-sidecar-readiness", "false"), ("enable-kubernetes-sidecar", "true")]),
    ] {
        tekton::set(lab, flags, TektonNop::Its).await?;
        let mut measured: Vec<(Way, Numbers)> =
            ways.iter().filter(|way| has_istio || !way.with.is_istio()).map(|way| (*way, Numbers::default())).collect();
        // They take turns, so that whatever else the machine does hits all of them.
        for at in 0..runs {
            say(&format!("{} ways, round {} of {runs}", measured.len(), at + 1));
            for (way, numbers) in &mut measured {
                if let Some(story) = once(lab, *way).await? {
                    numbers.add(&story);
                }
            }
        }
        all.extend(measured);
    }
    let of = |marked: fn(&Way) -> bool, way: &Way| {
        let alike = |other: &&(Way, Numbers)| marked(&other.0) && other.0.with.is_istio() == way.with.is_istio();
        all.iter().find(alike).map(|(_, numbers)| numbers)
    };
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|(way, numbers)| {
            let against = |other: Option<&Numbers>, pick: fn(&Numbers) -> &Samples| {
                let compared = way.with != With::Nothing;
                other.filter(|_| compared).map_or_else(|| "–".to_owned(), |it| ratio(pick(numbers), pick(it)))
            };
            vec![
                way.what.to_owned(),
                numbers.start.cell(runs),
                numbers.gate.cell(runs),
                numbers.end.cell(runs),
                against(of(|way| way.floor, way), |it| &it.end),
                numbers.whole.cell(runs),
                against(of(|way| way.peer, way), |it| &it.whole),
                format!("{} of {runs}", numbers.succeeded),
            ]
        })
        .collect();
    let head = [
        "",
        "created → step one",
        "sidecar ready → step one",
        "steps done → pod ended",
        "÷ floor",
        "created → pod ended",
        "÷ Tekton's defaults",
        "pods Succeeded",
    ];
    let note = "\nSeconds, median / worst of runs one by one; step one's start is the entrypoint's own word, and it looks \
                once a second.\n";
    Ok(Part { title: "The whole way", markdown: markdown(&head, &rows) + note, raw: json!(all) })
}

impl Numbers {
    fn add(&mut self, story: &Story) {
        self.start.push(seconds(Some(story.created), story.step_started));
        self.gate.push(seconds(story.sidecars_ready, story.step_started));
        self.end.push(seconds(story.steps_done, story.pod_ended));
        self.whole.push(seconds(Some(story.created), story.pod_ended));
        self.succeeded += usize::from(story.phase == "Succeeded");
    }
}

async fn once(lab: &Lab, way: Way) -> Result<Option<Story>> {
    let kickstand = (INJECT, if way.kickstand { "true" } else { "false" });
    let labels = [kickstand, istio::INJECTED];
    let scene = Scene::new(lab, lab.namespace_with("bench", &labels[..=usize::from(way.with.is_istio())]).await?);
    let server = || Sidecar::server("web", 8001, 1);
    let run = TaskRun::new("run");
    let run = match way.with {
        With::Nothing => run.step("true"),
        // Where nobody waits, it may not be there yet.
        With::Declared if way.floor => run.sidecar(server()).step("sleep 2"),
        With::Declared => run.sidecar(server()).step(&ask(8001)),
        With::Injected => run.injected(Order::AfterOurs, server()).step(&ask(8001)),
        With::Istio => run.step(&scene.call_through_the_mesh().await?),
        With::IstioClassic => run.annotate(istio::NATIVE, "false").step(&scene.call_through_the_mesh().await?),
    };
    let run = scene.start(&run).await?;
    let pod = run.pod().await?;
    run.pod_ends().await?;
    let story = scene.record.look(|seen| Story::of(seen, &pod, READY));
    lab.delete_namespace(&scene.namespace).await?;
    Ok(story)
}
