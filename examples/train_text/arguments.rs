use std::path::PathBuf;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Parser;

use crate::support::choices::{MomentBits, Parameters, Place, Recomputing};
use crate::support::closing::Next;
use crate::support::options::{PrintOptions, SaveOptions, WatchOptions};

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
    #[command(flatten)]
    pub watch: WatchOptions,
    #[command(flatten)]
    pub save: SaveOptions,
    #[command(flatten)]
    pub print: PrintOptions,
    /// Reports which parameters a few texts give a gradient, and whether it is the loss's slope, and does not train. The status is 2
    /// if one receives none, or a wrong one.
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
        if self.audit && self.print.json {
            bail!("--audit prints a table: leave out --json");
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
        self.watch.check()
    }

    /// What may be tried after a run.
    pub fn next(&self) -> Next {
        let is_f32 = self.dtype == Parameters::F32;
        let steadier = || "`--dtype f32`: the loss is not finite in this type".to_owned();
        let longer = self.steps.saturating_mul(2);
        Next {
            batch: Some((self.batch, MOST_BYTES / self.context)),
            steadier: (!is_f32).then(steadier),
            otherwise: match self.save.checkpoint {
                Some(_) => format!("`--steps {longer} --resume`: trains on, with the same options"),
                None => {
                    "`--checkpoint run-1`: saves the run, which `--resume` continues".to_owned()
                }
            },
        }
    }
}
