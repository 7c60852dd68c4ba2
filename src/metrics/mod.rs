//! What is measured, in closed sets of labels: never a name of a pod, a namespace or an image.
//!
//! Each module registers its own metrics by their whole names, so that a name seen in an alert is found in the source.

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

pub mod certificates;
pub mod controller;
pub mod webhook;

/// A registry that knows which build it speaks for.
#[must_use]
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register(
        "kickstand_build",
        "The build that is running; always 1",
        Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]),
    );
    registry
}

/// A label whose values are known when it is compiled.
pub trait Closed: Copy + Eq + std::hash::Hash + std::fmt::Debug + Send + Sync + 'static {
    /// The label's name.
    const NAME: &'static str;
    /// Every value.
    const ALL: &'static [Self];
    /// As it stands in the metric.
    fn as_label(self) -> &'static str;
}

/// One [`Closed`] label, as a metric's label set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label<L>(L);

impl<L: Closed> EncodeLabelSet for Label<L> {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), std::fmt::Error> {
        [(L::NAME, self.0.as_label())].encode(encoder)
    }
}

/// A counter for each value of a label. All of them stand at 0 from the start: an alert on an increase misses the first
/// event of a series that appears with it.
#[derive(Clone, Debug)]
pub struct Counters<L: Closed>(Family<Label<L>, Counter>);

impl<L: Closed> Counters<L> {
    /// Registers the family under `name` (without `_total`, which is added to a counter's).
    pub fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        let counters = Self::default();
        registry.register(name, help, counters.0.clone());
        counters
    }

    /// Counts one.
    pub fn count(&self, label: L) {
        self.0.get_or_create(&Label(label)).inc();
    }

    /// How many were counted.
    #[must_use]
    pub fn of(&self, label: L) -> u64 {
        self.0.get_or_create(&Label(label)).get()
    }
}

impl<L: Closed> Default for Counters<L> {
    fn default() -> Self {
        let family = Family::default();
        for label in L::ALL {
            drop(family.get_or_create(&Label(*label)));
        }
        Self(family)
    }
}

/// A gauge that is one higher until this is dropped, however its scope is left.
#[derive(Debug)]
pub struct Raised(Gauge);

impl Raised {
    /// Raises it.
    #[must_use]
    pub fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Declares an enum that is a [`Closed`] label: `Variant => "value"`.
macro_rules! closed_label {
    ($(#[$outer:meta])* $name:ident, $label:literal { $($(#[$inner:meta])* $variant:ident => $value:literal,)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$inner])* $variant,)+ }

        impl $crate::metrics::Closed for $name {
            const NAME: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$variant,)+];
            fn as_label(self) -> &'static str {
                match self { $(Self::$variant => $value,)+ }
            }
        }
    };
}
pub(crate) use closed_label;
