//! Kickstand holds a Tekton TaskRun's first step until every sidecar is ready, and brings the sidecars to a stop when the
//! last step is done.
//!
//! One folder thinks, the rim acts. [`pod`] decides everything and knows no cluster; what is beside it reads, writes and
//! waits, and decides nothing.
pub mod admin;
pub mod admission;
pub mod app;
pub mod certificates;
pub mod clock;
pub mod config;
pub mod controller;
pub mod effects;
pub mod inject;
pub mod leader;
pub mod liveness;
pub mod metrics;
pub mod pod;
pub mod readiness;
pub mod release;
pub mod server;
pub mod shutdown;
pub mod telemetry;
pub mod tls;
pub mod watch;
