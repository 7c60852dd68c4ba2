//! Gate and stop latency: Kickstand, Tekton, and the floor.

use anyhow::Result;
use futures::future::try_join_all;
use kickstand::pod::contract::{ENDED_IMAGE, READY};
use serde::Serialize;
use serde_json::json;

use super::table::{Part, Samples, markdown, ratio};
use super::{floor, say};
use crate::harness::case::TektonNop;
use crate::harness::injector::Order;
use crate::harness::lab::Lab;
use crate::harness::scene::Scene;
use crate::harness::story::{Story, seconds};
use crate::harness::taskrun::{Sidecar, TaskRun, ask};
use crate::harness::tekton;

/// Who waits and stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Who {
    Kickstand,
    /// The fastest client with Kickstand's means.
    Floor,
    /// The fastest client, and a sidecar that is known to exit 0.
    Ended,
    Tekton,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Kickstand => "Kickstand",
            Self::Floor => "the floor: a bare client, at once, by nop",
            Self::Ended => "the same, by an image that cannot be parsed",
            Self::Tekton => "Tekton's own, its defaults",
        }
    }

    /// The annotation that its controller sets on a pod to open the gate.
    fn gate(self) -> &'static str {
        match self {
            Self::Kickstand => READY,
            Self::Floor | Self::Ended => floor::OPEN,
            Self::Tekton => "tekton.dev/ready",
        }
    }
}

#[derive(Default, Serialize)]
struct Numbers {
    /// A watch showed the sidecar ready → it showed the gate open.
    open: Samples,
    /// A watch showed the sidecar ready → the step's own start.
    gate: Samples,
    /// A watch showed the steps done → it showed the sidecar told to stop.
    told: Samples,
    /// A watch showed the steps done → it showed the pod ended.
    stop: Samples,
    succeeded: usize,
    runs: usize,
}

impl Numbers {
    fn add(&mut self, story: &Story) {
        self.open.push(seconds(story.sidecars_ready, story.gate_open));
        self.gate.push(seconds(story.sidecars_ready, story.step_started));
        self.told.push(seconds(story.steps_done, story.told_to_stop));
        self.stop.push(seconds(story.steps_done, story.pod_ended));
        self.succeeded += usize::from(story.phase == "Succeeded");
        self.runs += 1;
    }
}

pub(crate) async fn measure(lab: &Lab, runs: usize) -> Result<Part> {
    let mut rows = Vec::new();
    let mut raw = Vec::new();
    // One setting of Tekton's for the two that do without it, so that they can take turns.
    tekton::set(lab, &[("await-sidecar-readiness", "false"), ("enable-kubernetes-sidecar", "true")], TektonNop::Its)
        .await?;
    let mut ours = both_ways(lab, &[Who::Kickstand, Who::Floor, Who::Ended], runs).await?;
    tekton::set(lab, &[], TektonNop::Its).await?;
    ours.extend(both_ways(lab, &[Who::Tekton], runs).await?);
    for way in ["one by one", "at once"] {
        let of = |who| ours.iter().find(|(its, how, _)| *its == who && *how == way).map(|(_, _, numbers)| numbers);
        let floor = of(Who::Floor);
        for who in [Who::Kickstand, Who::Tekton, Who::Floor, Who::Ended] {
            let Some(numbers) = of(who) else { continue };
            let against = |pick: fn(&Numbers) -> &Samples| {
                floor.map_or_else(|| "–".to_owned(), |floor| ratio(pick(numbers), pick(floor)))
            };
            rows.push(vec![
                format!("{runs} {way}: {}", who.name()),
                numbers.open.cell(runs),
                numbers.gate.cell(runs),
                against(|it| &it.gate),
                numbers.told.cell(runs),
                numbers.stop.cell(runs),
                against(|it| &it.stop),
                format!("{} of {runs}", numbers.succeeded),
            ]);
            raw.push(json!({ "who": who, "how": way, "numbers": numbers }));
        }
    }
    let head = [
        "",
        "sidecar ready → gate open",
        "sidecar ready → step one",
        "÷ floor",
        "steps done → told to stop",
        "steps done → pod ended",
        "÷ floor",
        "pods Succeeded",
    ];
    let note = "\nSeconds, median / worst, as a watch shows them; step one's start is the entrypoint's own word, and it looks \
                once a second. One sidecar a pod, which heeds SIGTERM.\n";
    Ok(Part { title: "Gate and stop", markdown: markdown(&head, &rows) + note, raw: json!(raw) })
}

type Measured = Vec<(Who, &'static str, Numbers)>;

async fn both_ways(lab: &Lab, all: &[Who], runs: usize) -> Result<Measured> {
    let mut measured: Measured = Vec::new();
    for who in all {
        measured.push((*who, "one by one", Numbers::default()));
        measured.push((*who, "at once", Numbers::default()));
    }
    for at in 0..runs {
        say(&format!("one by one, {} of {runs}", at + 1));
        for who in all {
            let story = once(lab, *who, 1).await?;
            add(&mut measured, *who, "one by one", &story);
        }
    }
    for who in all {
        say(&format!("{runs} at once: {}", who.name()));
        let story = once(lab, *who, runs).await?;
        add(&mut measured, *who, "at once", &story);
    }
    Ok(measured)
}

fn add(measured: &mut Measured, who: Who, how: &str, stories: &[Story]) {
    let found = measured.iter_mut().find(|(its, way, _)| *its == who && *way == how);
    if let Some((_, _, numbers)) = found {
        for story in stories {
            numbers.add(story);
        }
    }
}

/// So many runs at the same time, in a namespace of their own.
async fn once(lab: &Lab, who: Who, runs: usize) -> Result<Vec<Story>> {
    let scene = Scene::new(lab, lab.namespace("bench", Some(who == Who::Kickstand)).await?);
    let stories = try_join_all((0..runs).map(async |at| {
        let server = Sidecar::server("web", 8001, 1);
        let mut run = TaskRun::new(&format!("run-{at}")).step(&ask(8001));
        run = match who {
            Who::Tekton => run.sidecar(server),
            Who::Kickstand => run.injected(Order::AfterOurs, server),
            Who::Floor | Who::Ended => run.injected(Order::AfterOurs, server).annotate(floor::WANTED, "true"),
        };
        let run = scene.start(&run).await?;
        let pod = run.pod().await?;
        match who {
            Who::Floor => floor::serve(&scene, &pod, &lab.images.nop).await?,
            Who::Ended => floor::serve(&scene, &pod, ENDED_IMAGE).await?,
            Who::Kickstand | Who::Tekton => {}
        }
        run.pod_ends().await?;
        Ok::<_, anyhow::Error>(scene.record.look(|seen| Story::of(seen, &pod, who.gate())))
    }))
    .await;
    lab.delete_namespace(&scene.namespace).await?;
    Ok(stories?.into_iter().flatten().collect())
}
