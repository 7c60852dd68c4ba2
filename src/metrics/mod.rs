//! What is measured, in closed sets of labels: never a name of a pod, a namespace or an image.

pub mod certificates;
pub mod controller;
pub mod webhook;
