//! The thinking, all of it, and nothing else: no client, no runtime, no clock, no environment, no log.
//!
//! ```text
//! model      what is read of a Pod           contract   labels, annotations, reasons: the public API
//! tekton     is it a TaskRun's; its steps    sidecars   who is awaited and stopped, in which role, how it ends
//! entrypoint the first step's arguments      verdict    what the TaskRun says of this pod
//! gate       the gate in a pod's spec        mutate     Pod -> patch, or why there is none      (webhook)
//! known      the table of known sidecars    native     who moves to the kubelet; Tekton's wait    (webhook)
//! facts      what the leader tells           ask        Pod -> annotations that ask injectors   (webhook)
//! slips      settings without effect         edit       operations on a raw pod                 (webhook)
//! versions   can the cluster run native ones refusals   TaskRuns that say that native was refused (controller)
//! nop        what the nop image covers       decide     Pod + verdict + time -> actions         (controller)
//! doctor     dry runs -> what is well        patch      action -> guarded JSON Patch            (controller)
//! ```
pub mod ask;
pub mod contract;
pub mod decide;
pub mod doctor;
mod edit;
pub mod entrypoint;
pub mod facts;
pub mod gate;
pub mod known;
pub mod model;
pub mod mutate;
pub mod native;
pub mod nop;
pub mod patch;
pub mod refusals;
pub mod sidecars;
pub mod slips;
pub mod tekton;
pub mod verdict;
pub mod versions;
