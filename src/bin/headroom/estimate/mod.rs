//! `headroom estimate`: does a model fit, and what helps if not?

mod activations;
mod config;
mod loss;
mod memories;
mod remedies;
mod report;
mod training;
mod weights;

use std::path::PathBuf;

use activations::Model;
use candle_core::DType;
use candle_headroom::ByteSize;
use candle_headroom::error::Holding;
use config::Config;
use memories::memories;
use remedies::remedies;
use report::{Fit, MicroBatch, Report};
use training::{Lora, Moments, Optimizer, Training};
use weights::{Weights, elements};

use super::output::{Result, Status, print};

/// Estimate what training a model takes of memory, and what fits
///
/// FOLDER is a model's of Hugging Face: config.json (llama, mistral, qwen2,
/// qwen3), safetensors files, or both. Of the files, only the headers are read;
/// without config.json, activations are not known. The model is taken to be
/// built of the layers of `candle_headroom::nn`.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Exit status: 0 if the micro-batch fits into one of the memories, or none is
known, 1 if it fits into none, 2 for bad input.")]
pub struct Arguments {
    /// The model
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Samples of a micro-batch
    #[arg(long, default_value_t = 1, value_name = "SAMPLES", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    batch: u64,
    /// Tokens of a sample [default: the model's context, at most 2048]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    length: Option<u64>,
    /// Type of the model: f32, bf16 or f16 [default: as saved, or f32]
    #[arg(long, value_parser = dtype)]
    dtype: Option<DType>,
    /// What updates the parameters
    #[arg(long, default_value = "adamw")]
    optimizer: Optimizer,
    /// Type of the optimizer's moments
    #[arg(long, default_value = "f32")]
    moments: Moments,
    /// Train adapters (LoRA) of this rank, in f32; the model is frozen
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u64).range(1..=1 << 16))]
    lora_rank: Option<u64>,
    /// The layers that get adapters, such as q_proj,v_proj
    #[arg(
        long,
        value_name = "LAYERS",
        value_delimiter = ',',
        default_value = "all-linear"
    )]
    lora_targets: Vec<String>,
    /// A GPU's memory, such as 24GiB [default: that of the GPUs here]
    #[arg(long, value_name = "BYTES")]
    memory: Vec<ByteSize>,
    /// Train on the CPU, by default in this machine's free memory
    #[arg(long)]
    cpu: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<Status> {
    let folder = &arguments.folder;
    if !folder.is_dir() {
        let why = if folder.exists() {
            "not a folder"
        } else {
            "no such folder"
        };
        return Err(format!("{}: {why}", folder.display()).into());
    }
    let (config, weights) = (Config::read(folder)?, Weights::read(folder)?);
    let shapes = match (&config, &weights) {
        (Some(config), _) => config.parameters(),
        (None, Some(weights)) => weights.shapes.clone(),
        (None, None) => {
            let folder = folder.display();
            return Err(format!("{folder} has neither config.json nor safetensors files").into());
        }
    };
    let saved = weights.as_ref().and_then(|weights| weights.dtype);
    let saved = saved.or(config.as_ref().and_then(|config| config.dtype));
    let dtype = arguments.dtype.or(saved).unwrap_or(DType::F32);
    let mut training = Training::new(shapes, dtype, arguments.optimizer, arguments.moments);
    if let Some(rank) = arguments.lora_rank {
        let config = config
            .as_ref()
            .ok_or("--lora-rank needs the folder's config.json")?;
        training = training.with_adapters(config, arguments.lora(config, rank)?);
    }
    let report = arguments.report(config.as_ref(), weights.as_ref(), &training)?;
    print(&match arguments.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.to_string(),
    })?;
    let fits = report.memories.iter().any(|memory| memory.fits);
    Ok(Status::of(!fits && !report.memories.is_empty()))
}

impl Arguments {
    fn lora(&self, config: &Config, rank: u64) -> Result<Lora> {
        let names = config.linear().map(|layer| layer.0);
        let is_known = |target: &str| target == "all-linear" || names.contains(&target);
        match self.lora_targets.iter().find(|target| !is_known(target)) {
            Some(target) => Err(format!(
                "--lora-targets: no layer is named `{target}`; there are {} and all-linear",
                names.join(", ")
            )
            .into()),
            None => Ok(Lora {
                rank,
                targets: self.lora_targets.clone(),
            }),
        }
    }

    fn report(
        &self,
        config: Option<&Config>,
        weights: Option<&Weights>,
        training: &Training,
    ) -> Result<Report> {
        let context = config.and_then(|config| config.context).unwrap_or(2048);
        let length = self.length.unwrap_or(context.min(2048));
        let is_gpu = !self.cpu;
        let model = |training| {
            config.map(|config| Model {
                config,
                training,
                length,
                is_gpu,
            })
        };
        let (own, held) = (model(training), training.held_bytes());
        let memories = memories(&self.memory, self.cpu)?.into_iter();
        let memories = memories.map(|memory| Fit::new(memory, own.as_ref(), self.batch, held));
        let memories = memories.collect();
        let held_as = training.held().into_iter();
        Ok(Report {
            model: config.map_or("safetensors".to_owned(), |config| config.family.clone()),
            parameters: training.in_model(),
            trained: training.trained(),
            dtype: training.dtype.as_str().to_owned(),
            held: held_as
                .map(|(what, bytes)| Holding::new(what, bytes))
                .collect(),
            held_bytes: held,
            micro_batch: own
                .as_ref()
                .map(|model| MicroBatch::new(model, self.batch, held)),
            memories,
            remedies: own
                .as_ref()
                .map_or(Vec::new(), |own| remedies(own, self.batch)),
            notes: notes(config, weights, length),
        })
    }
}

/// What the reader should know of the folder.
fn notes(config: Option<&Config>, weights: Option<&Weights>, length: u64) -> Vec<String> {
    let mut notes = Vec::new();
    let left_out = weights.map_or(0, |weights| weights.left_out);
    if left_out > 0 {
        notes.push(format!(
            "{left_out} tensors are not f32, bf16, f16 or f64, such as quantized weights, and not counted"
        ));
    }
    let Some(config) = config else {
        notes.push("without config.json, activations are not known".to_owned());
        return notes;
    };
    let count = |shapes: &[Vec<u64>]| shapes.iter().map(|shape| elements(shape)).sum::<u64>();
    let described = count(&config.parameters());
    let there = weights.map_or(described, |weights| count(&weights.shapes));
    if there != described {
        notes.push(format!(
            "config.json describes {described} parameters, the files hold {there}"
        ));
    }
    if let Some(context) = config.context.filter(|context| length > *context) {
        notes.push(format!("{length} tokens are beyond the model's {context}"));
    }
    notes
}

/// A type that the library trains in.
fn dtype(name: &str) -> std::result::Result<DType, String> {
    config::dtype(name).ok_or_else(|| "use f32, bf16 or f16".to_owned())
}
