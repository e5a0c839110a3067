use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;
use candle_core::DType;
use candle_headroom::DeviceMemory;
use candle_headroom::batch::Recompute;
use candle_headroom::memory::Limit;
use candle_headroom::optim::Moments;
use clap::{Parser, ValueEnum};

/// Most bytes in a batch. A batch is held twice, as u32: 256 MiB each.
const MOST_BYTES: usize = 1 << 26;
/// Longest text. Attention takes memory in proportion to the square of it.
const LONGEST: usize = 4096;

/// Trains a byte-level transformer on text within a memory budget that the whole batch does not fit.
#[derive(Debug, Clone, Parser)]
pub struct Arguments {
    /// Text to train on. The default is this project's own documents and sources.
    pub files: Vec<PathBuf>,
    /// Device to train on: `cpu`, or `cuda:0` for the first GPU. With `--ranks`, the first rank on a machine takes this GPU, the others
    /// the next ones.
    #[arg(long, default_value = "cpu")]
    pub device: Place,
    /// Memory that each process may use on the device, such as 128MiB.
    #[arg(long, default_value = "26MiB")]
    pub budget: ByteSize,
    /// Number of texts in a batch; with `--ranks` in that of all ranks together.
    #[arg(long, default_value_t = 64)]
    pub batch: usize,
    /// Length of a text in bytes, at most 4096.
    #[arg(long, default_value_t = 64)]
    pub context: usize,
    /// Number of updates.
    #[arg(long, default_value_t = 45)]
    pub steps: usize,
    /// Trains one model together with the other processes that a launcher has started: `mpirun -n 2 train_text --ranks`.
    #[arg(long)]
    pub ranks: bool,
    /// Type of the parameters and of the computation. bf16 and f16 have master weights in f32, f16 a dynamic loss scale too.
    #[arg(long, value_enum, default_value_t)]
    pub dtype: Parameters,
    /// Type of AdamW's moments: 8, 4 or about 2 bytes for each parameter.
    #[arg(long, value_enum, default_value_t)]
    pub moments: MomentBits,
    /// Whether the model's blocks are recomputed in the backward pass.
    #[arg(long, value_enum, default_value_t)]
    pub recompute: Recomputing,
    /// Prints what training takes of memory: before the first step, and after it with what a micro-batch took.
    #[arg(long)]
    pub estimate: bool,
    /// Seed of the initial parameters, the batches and the sampled text.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Sets no budget: each batch runs as one micro-batch.
    #[arg(long)]
    pub unlimited: bool,
    /// Writes a page for a browser at the end: memory, micro-batches, throughput and events. With `--ranks`, it shows all
    /// ranks, and their trace is written beside it: `run.html` and `run.json`.
    #[arg(long, value_name = "HTML")]
    pub report: Option<PathBuf>,
    /// Writes a trace for https://ui.perfetto.dev at the end. With `--ranks`, it has all ranks, and their page is written beside it.
    #[arg(long, value_name = "JSON")]
    pub trace: Option<PathBuf>,
    /// Appends each incident to this file as it happens, one line each. With `--ranks`, those of rank 0.
    #[arg(long, value_name = "JSONL")]
    pub incidents: Option<PathBuf>,
    /// Samples the GPUs and the host, with `--ranks` those of rank 0. Their curves appear on the page and in the trace, the latest samples in each incident.
    #[arg(long)]
    pub monitor: bool,
    /// Saves checkpoints of the run in this folder, and one more on Ctrl-C, SIGTERM or SIGUSR1.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Number of updates from one checkpoint to the next.
    #[arg(
        long,
        value_name = "STEPS",
        default_value_t = 10,
        requires = "checkpoint"
    )]
    pub every: u64,
    /// Goes on from the latest checkpoint in the folder, if there is one.
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// Reports which parameters one batch gives a gradient, and does not train. The status is 2 if one receives none.
    #[arg(long)]
    pub audit: bool,
}

impl Arguments {
    /// Refuses what cannot be trained, before anything is allocated.
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
        if self.audit && self.ranks {
            bail!("--audit needs one process: leave out --ranks");
        }
        if self.context > LONGEST {
            bail!(
                "--context {} is too long: give at most {LONGEST}",
                self.context
            );
        }
        if self.batch > MOST_BYTES / self.context {
            bail!(
                "--batch {} is too large: with --context {} give at most {}",
                self.batch,
                self.context,
                MOST_BYTES / self.context,
            );
        }
        for path in [&self.report, &self.trace, &self.incidents]
            .into_iter()
            .flatten()
        {
            check_output(path)?;
        }
        Ok(())
    }
}

/// Refuses an existing path that is a folder, a device, or a file that cannot be written.
fn check_output(path: &Path) -> Result<()> {
    let Ok(metadata) = path.metadata() else {
        return Ok(()); // a new file: whoever creates it reports a wrong folder
    };
    if !metadata.is_file() {
        bail!(
            "{} is not a regular file: name a file to write",
            path.display()
        );
    }
    let opened = OpenOptions::new().append(true).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// The type of the parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, ValueEnum)]
pub enum Parameters {
    #[default]
    F32,
    Bf16,
    F16,
}

impl From<Parameters> for DType {
    fn from(parameters: Parameters) -> Self {
        match parameters {
            Parameters::F32 => Self::F32,
            Parameters::Bf16 => Self::BF16,
            Parameters::F16 => Self::F16,
        }
    }
}

/// The type of moments.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum MomentBits {
    #[default]
    F32,
    Bf16,
    #[value(name = "8bit")]
    EightBit,
}

impl From<MomentBits> for Moments {
    fn from(bits: MomentBits) -> Self {
        match bits {
            MomentBits::F32 => DType::F32.into(),
            MomentBits::Bf16 => DType::BF16.into(),
            MomentBits::EightBit => Self::EightBit,
        }
    }
}

/// What becomes of the model's blocks.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub enum Recomputing {
    /// They are kept, like other layers.
    Never,
    /// They are recomputed.
    Always,
    /// They are kept while that is faster.
    #[default]
    Auto,
}

impl From<Recomputing> for Recompute {
    fn from(recomputing: Recomputing) -> Self {
        match recomputing {
            Recomputing::Never => Self::Never,
            Recomputing::Always => Self::Always,
            Recomputing::Auto => Self::Auto,
        }
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

    /// The number among candle's CUDA devices.
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
            _ => Err("expected `cpu` or `cuda:` and a GPU's number, such as `cuda:0`".to_owned()),
        }
    }
}
