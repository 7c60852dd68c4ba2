//! Kickstand holds a Tekton TaskRun's first step until every sidecar is ready, and brings the sidecars to a stop when the
//! last step is done.
//!
//! One folder thinks, the rim acts. [`pod`] decides everything and knows no cluster; what is beside it reads, writes and
//! waits, and decides nothing. Imports point down only:
//!
//! ```text
//! main → app        puts a process together, ends it in order      config       the command line, checked once
//!
//! the webhook       admission   AdmissionReview in, out            the controller   controller   look, decide, act
//!                   server tls  connections, a certificate                          watch        what is seen, slimmed
//!                               that may change                                     effects      the only writes
//!                   liveness    is there a controller?                              leader       which replica acts
//!                                                                                   certificates made, kept, renewed
//!
//! offline: inject   by dry runs: doctor   at the end: release
//! both: admin metrics readiness shutdown telemetry clock cluster table
//!
//! pod               model contract · tekton entrypoint sidecars known nop gate verdict · native ask mutate edit slips ·
//!                   decide patch · facts versions refusals doctor
//! ```
pub mod admin;
pub mod admission;
pub mod app;
pub mod certificates;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod controller;
pub mod doctor;
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
pub mod table;
pub mod telemetry;
pub mod tls;
pub mod watch;
