//! What is written in files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_headroom::data::{Dataset, Lines};
use serde::Deserialize;

/// Most bytes of a file of text. The limit also ends the reading of a file without an end, such as `/dev/zero`.
const MOST_BYTES: u64 = 1 << 30;

/// A text to learn, and a prompt before it that is given.
pub struct Record {
    pub prompt: Option<String>,
    pub text: String,
}

/// The columns of a table, or the fields of a JSON object; others are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fields {
    pub prompt: Option<String>,
    pub completion: Option<String>,
    pub text: Option<String>,
}

impl TryFrom<Fields> for Record {
    type Error = anyhow::Error;

    fn try_from(fields: Fields) -> Result<Self> {
        match (fields.prompt, fields.completion, fields.text) {
            (Some(_), Some(completion), None) if completion.is_empty() => {
                bail!("`completion` is empty: there is nothing to learn")
            }
            (None, None, Some(text)) if text.is_empty() => {
                bail!("`text` is empty: there is nothing to learn")
            }
            (prompt @ Some(_), Some(text), None) | (prompt @ None, None, Some(text)) => {
                Ok(Self { prompt, text })
            }
            (Some(_), None, None) => bail!(
                "`prompt` has no `completion`: there is nothing to learn; give it as `text` to learn all of it"
            ),
            (None, Some(_), None) => {
                bail!("`completion` has no `prompt`: give an empty one, or `text`")
            }
            (None, None, None) => bail!("neither `prompt` and `completion` nor `text` is there"),
            (_, _, Some(_)) => {
                bail!("`text` stands beside `prompt` or `completion`: give one or the other")
            }
        }
    }
}

/// Reads files one after the other.
pub fn read(files: &[PathBuf]) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for file in files {
        let before = records.len();
        let ending = file.extension().and_then(|ending| ending.to_str());
        match ending {
            Some("jsonl" | "ndjson" | "json") => lines(file, &mut records)?,
            Some("parquet") => parquet(file, &mut records)?,
            _ => records.push(text(file)?),
        }
        if records.len() == before {
            bail!("{} is empty: name a file with samples", file.display())
        }
    }
    Ok(records)
}

/// A file of text is one record.
fn text(path: &Path) -> Result<Record> {
    let mut bytes = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    if read == 0 {
        bail!("{} is empty: name a file with text", path.display());
    }
    if read as u64 > MOST_BYTES {
        bail!(
            "{} is too large: a file of text may hold 1 GiB",
            path.display()
        );
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Record { prompt: None, text }),
        Err(error) => bail!(
            "{} at byte {}: is not UTF-8; convert it, for example with `iconv -t UTF-8`",
            path.display(),
            error.utf8_error().valid_up_to()
        ),
    }
}

fn lines(path: &Path, records: &mut Vec<Record>) -> Result<()> {
    let lines = Lines::open(path)?;
    for index in 0..lines.len() {
        let line = lines.get(index).map_err(anyhow::Error::from_boxed)?;
        if line.trim().is_empty() {
            continue;
        }
        let place = || format!("{}, line {}", path.display(), index + 1);
        let fields: Fields = match serde_json::from_str(&line) {
            Ok(fields) if line.trim_start().starts_with('{') => fields,
            // Its fields by their order.
            Ok(_) => bail!("{}, column 1: is a list, not an object", place()),
            Err(error) => {
                let whole = error.to_string();
                let text = whole
                    .rsplit_once(" at line ")
                    .map_or(&*whole, |parts| parts.0);
                bail!("{}, column {}: {text}", place(), error.column())
            }
        };
        records.push(Record::try_from(fields).with_context(place)?);
    }
    Ok(())
}

#[cfg(feature = "parquet")]
fn parquet(path: &Path, records: &mut Vec<Record>) -> Result<()> {
    let rows = candle_headroom::data::ParquetDataset::<Fields>::builder([path]).open()?;
    for index in 0..rows.len() {
        let row = rows.get(index).map_err(anyhow::Error::from_boxed)?;
        let place = || format!("{}, row {index}", path.display());
        records.push(Record::try_from(row).with_context(place)?);
    }
    Ok(())
}

#[cfg(not(feature = "parquet"))]
fn parquet(path: &Path, _: &mut Vec<Record>) -> Result<()> {
    bail!(
        "{} cannot be read by this build: build with `--features parquet`, or write the data as JSON lines",
        path.display()
    )
}
