//! The table of known sidecars, as a file extends it.

use crate::pod::known::Known;

/// The table of known sidecars that a file extends. One that cannot be read, or has a mistake, is a command line that
/// cannot be used: it is found out at once, and with its line.
///
/// # Errors
/// What is wrong with the file, and where.
pub fn known_sidecars(file: &str) -> Result<Known, String> {
    let json = std::fs::read_to_string(file).map_err(|error| format!("cannot read it: {error}"))?;
    // serde_json names line and column.
    let first = Known::read(&json).map_err(|error| format!("not a table of sidecars: {error}"))?;
    Ok(Known::builtin().extended_by(first))
}
