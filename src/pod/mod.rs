//! The thinking, all of it, and nothing else: no client, no runtime, no clock, no environment, no log.
//!
//! ```text
//! model      what is read of a Pod             contract   labels, annotations, reasons: the public API
//! tekton     is it a TaskRun's pod; its steps  sidecars   who is awaited and stopped, in which role, and how it ends
//! entrypoint the first step's arguments        verdict    what the TaskRun says of this pod
//! gate       the gate in a pod's spec          mutate     Pod -> patch, or why there is none     (webhook)
//! nop        what the nop image covers         decide     Pod + verdict + time -> actions        (controller)
//! slips      settings without effect           patch      action -> guarded JSON Patch           (controller)
//! facts      what the leader tells the webhook
//! ```
pub mod contract;
pub mod decide;
pub mod entrypoint;
pub mod facts;
pub mod gate;
pub mod model;
pub mod mutate;
pub mod nop;
pub mod patch;
pub mod sidecars;
pub mod slips;
pub mod tekton;
pub mod verdict;
