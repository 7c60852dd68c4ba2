//! The command line: parse, dispatch, exit code.
fn main() {}
