use std::path::PathBuf;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Parser;

/// Trains a byte-level transformer on text within a memory budget that the whole batch does not fit.
#[derive(Debug, Parser)]
pub struct Arguments {
    /// Text to train on; without any, this project's own documents and sources.
    pub files: Vec<PathBuf>,
    /// Memory that the process may use, such as 128MiB.
    #[arg(long, default_value = "72MiB")]
    pub budget: ByteSize,
    /// Texts in a batch.
    #[arg(long, default_value_t = 64)]
    pub batch: usize,
    /// Bytes in a text.
    #[arg(long, default_value_t = 64)]
    pub context: usize,
    /// Updates.
    #[arg(long, default_value_t = 45)]
    pub steps: usize,
    /// Of the first parameters, the batches and the sampled text.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// No budget: each batch at once.
    #[arg(long)]
    pub unlimited: bool,
}

impl Arguments {
    pub fn check(&self) -> Result<()> {
        for (name, value) in [
            ("--batch", self.batch),
            ("--context", self.context),
            ("--steps", self.steps),
        ] {
            if value == 0 {
                bail!("{name} 0 trains nothing: give at least 1");
            }
        }
        Ok(())
    }
}
