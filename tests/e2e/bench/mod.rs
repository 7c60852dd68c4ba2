//! stub
use crate::cli::BenchArgs;
use crate::harness::lab::Lab;
pub(crate) async fn run(_lab: &Lab, _args: &BenchArgs) -> anyhow::Result<bool> {
    Ok(true)
}
