//! What a stopped sidecar runs.
fn main() {}
