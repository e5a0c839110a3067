use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use candle_headroom::DeviceMemory;
use candle_headroom::memory::Limit;
use clap::Parser;

/// Trains a byte-level transformer on text within a memory budget that the whole batch does not fit.
#[derive(Debug, Parser)]
pub struct Arguments {
    /// Text to train on; without any, this project's own documents and sources.
    pub files: Vec<PathBuf>,
    /// Where to train: `cpu`, or `cuda:0` for the first GPU.
    #[arg(long, default_value = "cpu")]
    pub device: Place,
    /// Memory that the process may use there, such as 128MiB.
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
    /// A page for a browser, written at the end: memory, micro-batches, throughput and events.
    #[arg(long, value_name = "HTML")]
    pub report: Option<PathBuf>,
    /// A trace for https://ui.perfetto.dev, written at the end.
    #[arg(long, value_name = "JSON")]
    pub trace: Option<PathBuf>,
    /// What goes wrong, a line each as it happens; a file that is there is gone on with.
    #[arg(long, value_name = "JSONL")]
    pub incidents: Option<PathBuf>,
    /// Watches the GPUs and the host meanwhile: their curves are on the page and in the trace, the last samples with each incident.
    #[arg(long)]
    pub monitor: bool,
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

/// A device, as candle names it.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    Cpu,
    Cuda(usize),
}

impl Place {
    pub fn open(self, limit: Limit) -> candle_headroom::Result<DeviceMemory> {
        match self {
            Self::Cpu => DeviceMemory::host().limit(limit).open(),
            Self::Cuda(ordinal) => DeviceMemory::cuda(ordinal).limit(limit).open(),
        }
    }

    /// Among candle's CUDA devices.
    pub fn ordinal(self) -> Option<usize> {
        match self {
            Self::Cpu => None,
            Self::Cuda(ordinal) => Some(ordinal),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ordinal = text.strip_prefix("cuda:").map(str::parse);
        match (text, ordinal) {
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(Ok(ordinal))) => Ok(Self::Cuda(ordinal)),
            _ => Err("give `cpu` or `cuda:` and a GPU's number, such as `cuda:0`".to_owned()),
        }
    }
}
