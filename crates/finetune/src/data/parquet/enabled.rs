use std::path::Path;

use anyhow::{Context, Result};
use candle_headroom::data::{Dataset, ParquetDataset};

use crate::data::record::{Fields, Record};

/// Reads the rows of a file.
pub fn read(path: &Path, records: &mut Vec<Record>) -> Result<()> {
    let rows = ParquetDataset::<Fields>::builder([path]).open()?;
    for index in 0..rows.len() {
        let row = rows.get(index).map_err(anyhow::Error::from_boxed)?;
        let place = || format!("{}, row {index}", path.display());
        records.push(Record::try_from(row).with_context(place)?);
    }
    Ok(())
}
