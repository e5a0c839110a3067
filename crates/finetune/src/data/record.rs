//! One text of the data.

use anyhow::{Result, bail};
use serde::Deserialize;

/// A text, of which a part may be given.
pub enum Record {
    Text(String),
    Pair { prompt: String, completion: String },
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
            (Some(prompt), Some(completion), None) => Ok(Self::Pair { prompt, completion }),
            (None, None, Some(text)) if text.is_empty() => {
                bail!("`text` is empty: there is nothing to learn")
            }
            (None, None, Some(text)) => Ok(Self::Text(text)),
            (Some(_), None, None) => {
                bail!(
                    "`prompt` has no `completion`: there is nothing to learn; give it as `text` to learn all of it"
                )
            }
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
