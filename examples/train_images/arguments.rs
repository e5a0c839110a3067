use std::path::PathBuf;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Parser;

use crate::support::choices::Place;
use crate::support::closing::Next;
use crate::support::options::{PrintOptions, WatchOptions};

/// Most samples in a batch: 256 MiB of pixels.
const MOST_SAMPLES: usize = 1 << 20;
/// Most passes over the images, so that products of them do not overflow.
const MOST_PASSES: usize = 1 << 20;

/// Trains a convolutional net with BatchNorm on images of handwritten digits, within a memory budget that its batches do not fit.
#[derive(Debug, Clone, Parser)]
pub struct Arguments {
    /// File of digits. The default is the example's own, 1,797 images of 8 × 8 pixels.
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Device to train on: `cpu`, or `cuda:0` for the first GPU.
    #[arg(long, default_value = "cpu")]
    pub device: Place,
    /// Memory that training may use on the device, such as 12MiB.
    #[arg(long, default_value = "12MiB")]
    pub budget: ByteSize,
    /// Sets no budget: each batch runs as one micro-batch.
    #[arg(long)]
    pub unlimited: bool,
    /// Number of images in a batch.
    #[arg(long, default_value_t = 128)]
    pub batch: usize,
    /// Number of times that each image is trained on, each time distorted in another way.
    #[arg(long, default_value_t = 12)]
    pub passes: usize,
    /// Trains on the images as they are.
    #[arg(long)]
    pub plain: bool,
    /// Number of threads that make batches. The result does not depend on it.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Highest learning rate, after a tenth of the steps.
    #[arg(long, default_value_t = 4e-3)]
    pub learning_rate: f64,
    /// Seed of the initial parameters, the order and the distortions.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Writes a page for a browser at the end: memory, micro-batches, loss and test accuracy.
    #[arg(long, value_name = "HTML")]
    pub report: Option<PathBuf>,
    #[command(flatten)]
    pub print: PrintOptions,
}

impl Arguments {
    /// Refuses what cannot be trained, before anything is allocated.
    pub fn check(&self) -> Result<()> {
        for (name, value, most) in [
            ("--batch", self.batch, MOST_SAMPLES),
            ("--passes", self.passes, MOST_PASSES),
        ] {
            if !(1..=most).contains(&value) {
                bail!("{name} {value} is out of range: give 1 to {most}");
            }
        }
        let rate = self.learning_rate;
        if !(rate.is_finite() && rate > 0.) {
            bail!("--learning-rate {rate} is out of range: give a number above 0");
        }
        self.watch().check()
    }

    /// What may be tried after a run.
    pub fn next(&self) -> Next {
        let (rate, passes) = (self.learning_rate / 10., self.passes * 2);
        let steadier = format!("`--learning-rate {rate:.1e}`: the loss is not finite");
        Next {
            batch: Some((self.batch, MOST_SAMPLES)),
            steadier: Some(steadier),
            otherwise: format!("`--passes {passes}`: learns for twice as long"),
        }
    }

    pub fn watch(&self) -> WatchOptions {
        WatchOptions {
            report: self.report.clone(),
            ..WatchOptions::default()
        }
    }
}
