use std::path::Path;

use anyhow::{Result, bail};

use crate::data::record::Record;

/// Refuses the file.
pub fn read(path: &Path, _: &mut Vec<Record>) -> Result<()> {
    bail!(
        "{} cannot be read by this build: build with `--features parquet`, or write the data as JSON lines",
        path.display()
    )
}
