//! Real text as training data.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor};
use rand::Rng;
use rand::rngs::StdRng;

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

    /// Cuts texts at random places. Returns the bytes and the bytes that follow them, each `(samples, context)` of u32.
    pub fn batch(
        &self,
        samples: usize,
        context: usize,
        rng: &mut StdRng,
    ) -> Result<(Tensor, Tensor)> {
        let last = self.bytes.len() - context;
        let starts: Vec<usize> = (0..samples).map(|_| rng.random_range(0..last)).collect();
        let cut = |shift: usize| {
            let text = starts.iter().flat_map(|start| {
                let text = self.text(start + shift..start + shift + context);
                text.iter().map(|&byte| u32::from(byte))
            });
            Tensor::from_iter(text, &Device::Cpu)?.reshape((samples, context))
        };
        Ok((cut(0)?, cut(1)?))
    }
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
