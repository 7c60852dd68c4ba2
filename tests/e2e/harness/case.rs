//! Cases and their groups.

use futures::future::BoxFuture;

use super::scene::Scene;

/// What a case does; an error is what was seen that should not be, or not seen that should.
pub(crate) type Test = for<'a> fn(&'a Scene<'a>) -> BoxFuture<'a, anyhow::Result<()>>;

/// Something that must be seen on a real cluster.
#[derive(Clone)]
pub(crate) struct Case {
    /// A sentence.
    pub(crate) name: String,
    pub(crate) test: Test,
}

impl Case {
    /// The function's name is the case's.
    pub(crate) fn new(function: &str, test: Test) -> Self {
        Self { name: function.rsplit("::").next().unwrap_or(function).trim().replace('_', " "), test }
    }
}

/// Cases that share Tekton's settings. They run side by side, unless they disturb each other.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    /// What is special about it, for people.
    pub(crate) about: &'static str,
    /// Tekton's feature flags that differ from its defaults.
    pub(crate) flags: &'static [(&'static str, &'static str)],
    /// What Tekton stops sidecars with.
    pub(crate) nop: TektonNop,
    /// How Kickstand is installed.
    pub(crate) strategy: Strategy,
    /// They need Istio, and their namespaces are those that it injects into.
    pub(crate) istio: bool,
    /// They take Kickstand or others down, or change them, so: one by one, and it is put right after each.
    pub(crate) disturbing: bool,
    pub(crate) cases: Vec<Case>,
}

/// Tekton's `-nop-image`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TektonNop {
    /// The one it was installed with.
    Its,
    /// Ours, as the documentation recommends.
    Ours,
}

/// How Kickstand's chart is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// With `native.enabled=false`: every sidecar stays as it came.
    Classic,
    /// With the chart's defaults: native where that is safe.
    Default,
}

/// A list of cases from the functions that they are.
macro_rules! cases {
    ($($test:path),* $(,)?) => {
        vec![$($crate::harness::case::Case::new(stringify!($test), |scene| Box::pin($test(scene)))),*]
    };
}
pub(crate) use cases;
