//! Samples, and Markdown.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

/// A part of the benchmark.
pub(crate) struct Part {
    pub(crate) title: &'static str,
    pub(crate) markdown: String,
    pub(crate) raw: Value,
}

/// Some measured seconds.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, seconds: Option<f64>) {
        if let Some(seconds) = seconds {
            self.0.push(seconds);
            self.0.sort_by(f64::total_cmp);
        }
    }

    /// The value that this share of the samples does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let last = self.0.len().checked_sub(1)?;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        let at = (share * last as f64).round() as usize;
        self.0.get(at).copied()
    }

    pub(crate) fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    /// Median and worst, in seconds, and how many there were if not `all`.
    pub(crate) fn cell(&self, all: usize) -> String {
        let (Some(median), Some(worst)) = (self.median(), self.quantile(1.0)) else { return "–".to_owned() };
        let mut cell = format!("{median:.3} / {worst:.3}");
        if self.0.len() != all {
            let _ = write!(cell, " ({} of {all})", self.0.len());
        }
        cell
    }
}

/// `ours ÷ its`, of medians.
pub(crate) fn ratio(ours: &Samples, its: &Samples) -> String {
    match (ours.median(), its.median()) {
        (Some(ours), Some(its)) if its > 0.0 => format!("{:.2}", ours / its),
        _ => "–".to_owned(),
    }
}

pub(crate) fn markdown(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}
