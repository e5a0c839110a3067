//! What is written in files.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_headroom::data::{Dataset, JsonLines};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Most bytes of a file of text. The limit also ends the reading of a file without an end, such as `/dev/zero`.
const MOST_BYTES: u64 = 1 << 30;

/// A text to learn, and a prompt before it that is given.
#[derive(Deserialize)]
#[serde(try_from = "Fields")]
pub struct Record {
    pub prompt: Option<String>,
    pub text: String,
}

/// The columns of a table, or the fields of a JSON object.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Fields {
    prompt: Option<String>,
    completion: Option<String>,
    text: Option<String>,
    /// With it, a list is not taken for the fields by their order.
    #[serde(flatten)]
    _others: HashMap<String, IgnoredAny>,
}

impl TryFrom<Fields> for Record {
    type Error = anyhow::Error;

    fn try_from(fields: Fields) -> Result<Self> {
        let (name, prompt, text) = match (fields.prompt, fields.completion, fields.text) {
            (Some(prompt), Some(completion), None) => ("completion", Some(prompt), completion),
            (None, None, Some(text)) => ("text", None, text),
            _ => bail!("there must be `prompt` and `completion`, or `text` alone"),
        };
        ensure!(
            !text.is_empty(),
            "`{name}` is empty: there is nothing to learn"
        );
        Ok(Self { prompt, text })
    }
}

/// Reads files one after the other.
pub fn read(files: &[PathBuf]) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for file in files {
        let before = records.len();
        let ending = file.extension().and_then(|ending| ending.to_str());
        match ending {
            Some("jsonl" | "ndjson" | "json") => {
                read_all(&JsonLines::<Record>::open(file)?, &mut records)?
            }
            #[cfg(feature = "parquet")]
            Some("parquet") => {
                let rows = candle_headroom::data::ParquetDataset::<Record>::builder([file]);
                read_all(&rows.open()?, &mut records)?;
            }
            #[cfg(not(feature = "parquet"))]
            Some("parquet") => bail!(
                "{} cannot be read by this build: build with `--features parquet`, or write the data as JSON lines",
                file.display()
            ),
            _ => {
                let text = text(file)?;
                let prompt = None;
                records.extend((!text.is_empty()).then_some(Record { prompt, text }));
            }
        }
        ensure!(
            records.len() > before,
            "{} is empty: name a file with samples",
            file.display()
        );
    }
    Ok(records)
}

fn read_all(dataset: &dyn Dataset<Sample = Record>, records: &mut Vec<Record>) -> Result<()> {
    for index in 0..dataset.len() {
        let record = dataset.get(index);
        records.push(record.map_err(anyhow::Error::from_boxed)?);
    }
    Ok(())
}

/// A file of text is one record.
fn text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path)
        .and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        read as u64 <= MOST_BYTES,
        "{} is too large: a file of text may hold 1 GiB",
        path.display()
    );
    String::from_utf8(bytes).with_context(|| {
        let hint = "convert it to UTF-8, for example with `iconv -t UTF-8`";
        format!("cannot read {}: {hint}", path.display())
    })
}
