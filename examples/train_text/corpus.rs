//! Real text as training data.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor};
use candle_headroom::data::{Dataset, Loader};
use candle_headroom::distributed::Group;
use candle_headroom::error::BoxedError;

/// Most bytes of text. The limit also ends the reading of a file without an end, such as `/dev/zero`.
const MOST_BYTES: u64 = 256 << 20;

pub struct Corpus {
    bytes: Vec<u8>,
}

impl Corpus {
    /// Reads all files, one after the other. None may be empty, and together they must hold more than `context` bytes.
    pub fn read(files: &[PathBuf], context: usize) -> Result<Self> {
        let mut bytes = Vec::new();
        for file in files {
            let before = bytes.len() as u64;
            let read = File::open(file)
                .and_then(|open| open.take(MOST_BYTES + 1 - before).read_to_end(&mut bytes))
                .with_context(|| format!("cannot read {}", file.display()))?;
            if read == 0 {
                bail!("{} is empty: name a file with text", file.display());
            }
            if bytes.len() as u64 > MOST_BYTES {
                bail!(
                    "{} is too large: all text together may hold 256 MiB",
                    file.display()
                );
            }
        }
        if bytes.len() < context + 1 {
            bail!(
                "the text holds {} bytes, too short for a context of {context}: name more text or use `--context {}`",
                bytes.len(),
                bytes.len().saturating_sub(1).max(1),
            );
        }
        // What is left of the last doubling would count against the budget.
        bytes.shrink_to_fit();
        Ok(Self { bytes })
    }

    /// This project's own documents and sources.
    pub fn own_files() -> Result<Vec<PathBuf>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = vec![root.join("README.md"), root.join("CHANGELOG.md")];
        for folder in ["docs", "src"] {
            collect(&root.join(folder), &mut files)?;
        }
        files.sort();
        Ok(files)
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn text(&self, range: std::ops::Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }
}

/// A text, and the same one byte later; each `(samples, context)` of u32.
pub type Batch = (Tensor, Tensor);

/// All texts of `context` bytes, each with the byte that follows it.
struct Windows {
    corpus: Arc<Corpus>,
    context: usize,
}

impl Dataset for Windows {
    type Sample = Vec<u8>;

    fn len(&self) -> usize {
        self.corpus.len() - self.context
    }

    fn get(&self, index: usize) -> Result<Vec<u8>, BoxedError> {
        Ok(self.corpus.text(index..index + self.context + 1).to_vec())
    }

    fn name(&self) -> String {
        "the text".to_owned()
    }
}

/// Loads this rank's part, or all, of batches of texts that begin at places drawn by the seed.
pub fn batches(
    corpus: &Arc<Corpus>,
    (batch, context): (usize, usize),
    seed: u64,
    group: Option<&Group>,
) -> Result<Loader<Batch>> {
    let windows = Windows {
        corpus: Arc::clone(corpus),
        context,
    };
    let collate = move |texts: Vec<Vec<u8>>| -> Result<Batch, BoxedError> {
        let cut = |shift: usize| {
            let bytes = texts
                .iter()
                .flat_map(|text| text.iter().skip(shift).take(context));
            let bytes = bytes.map(|&byte| u32::from(byte));
            Tensor::from_iter(bytes, &Device::Cpu)?.reshape((texts.len(), context))
        };
        Ok((cut(0)?, cut(1)?))
    };
    let builder = Loader::builder(windows, collate).batch(batch).shuffle(seed);
    let builder = match group {
        Some(group) => builder.group(group),
        None => builder,
    };
    // Fewer places than samples leave smaller batches.
    Ok(builder.endless().ahead(2).build()?)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|end| end == "md" || end == "rs")
        {
            files.push(path);
        }
    }
    Ok(())
}
