//! The node's processes, where the node is this machine.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

/// The processes of a pod that have this argument.
pub(crate) fn processes(pod_uid: &str, argument: &str) -> Result<Vec<u32>> {
    // A cgroup of the systemd driver has underscores for the dashes.
    let names = [pod_uid.to_owned(), pod_uid.replace('-', "_")];
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(process) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let cgroup = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has_argument = command.split(|byte| *byte == 0).any(|word| word == argument.as_bytes());
        if has_argument && names.iter().any(|name| cgroup.contains(name.as_str())) {
            found.push(process);
        }
    }
    Ok(found)
}

/// SIGKILL to them; how many there were.
pub(crate) fn kill(pod_uid: &str, argument: &str) -> Result<usize> {
    let found = processes(pod_uid, argument)?;
    for process in &found {
        let done = Command::new("kill").args(["-KILL", &process.to_string()]).status()?;
        ensure!(done.success(), "cannot kill process {process}");
    }
    Ok(found.len())
}

/// What a process has in memory, in bytes.
pub(crate) fn resident(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(kilobytes.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}
