//! What is written in files.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_headroom::data::{Dataset, JsonLines};
use minijinja::Value;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::chat::Chat;

/// Most bytes of a file of text. The limit also ends the reading of a file without an end, such as `/dev/zero`.
const MOST_BYTES: u64 = 1 << 30;

/// What is learned of a line of a file.
#[derive(Deserialize)]
#[serde(try_from = "Fields")]
pub enum Record {
    /// All of a text.
    Text(String),
    /// A completion, after a prompt that is given.
    Pair { prompt: String, completion: String },
    /// The assistant's turns.
    Chat(Chat),
}

/// Records, and where each was read.
pub struct Records {
    pub all: Vec<Record>,
    /// Each file, and the number of records before it.
    files: Vec<(PathBuf, usize)>,
}

impl Records {
    /// Where the record with this number was read, for an error.
    pub fn place(&self, number: usize) -> String {
        let mut files = self.files.iter().rev();
        match files.find(|(_, before)| *before <= number) {
            Some((file, before)) => format!("sample {} of {}", number - before + 1, file.display()),
            None => format!("sample {}", number + 1),
        }
    }
}

/// The columns of a table, or the fields of a JSON object.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Fields {
    prompt: Option<String>,
    completion: Option<String>,
    text: Option<String>,
    messages: Option<Vec<Value>>,
    tools: Option<Value>,
    /// With it, a list is not taken for the fields by their order.
    #[serde(flatten)]
    _others: HashMap<String, IgnoredAny>,
}

impl TryFrom<Fields> for Record {
    type Error = anyhow::Error;

    fn try_from(fields: Fields) -> Result<Self> {
        let given = (
            fields.prompt,
            fields.completion,
            fields.text,
            fields.messages,
        );
        let (name, is_empty, record) = match given {
            (Some(prompt), Some(completion), None, None) => {
                let is_empty = completion.is_empty();
                ("completion", is_empty, Self::Pair { prompt, completion })
            }
            (None, None, Some(text), None) => ("text", text.is_empty(), Self::Text(text)),
            (None, None, None, Some(messages)) => {
                let tools = fields.tools;
                (
                    "messages",
                    messages.is_empty(),
                    Self::Chat(Chat { messages, tools }),
                )
            }
            _ => bail!("there must be `messages`, `prompt` and `completion`, or `text` alone"),
        };
        ensure!(!is_empty, "`{name}` is empty: there is nothing to learn");
        Ok(record)
    }
}

/// Reads files one after the other.
pub fn read(files: &[PathBuf]) -> Result<Records> {
    let (mut records, mut places) = (Vec::new(), Vec::new());
    for file in files {
        let before = records.len();
        places.push((file.clone(), before));
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
                records.extend((!text.is_empty()).then_some(Record::Text(text)));
            }
        }
        ensure!(
            records.len() > before,
            "{} is empty: name a file with samples",
            file.display()
        );
    }
    Ok(Records {
        all: records,
        files: places,
    })
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
