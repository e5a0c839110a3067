//! `headroom estimate`: does a model fit, and what helps if not?

mod model;
mod peak;
mod report;
mod training;

use std::path::PathBuf;

use bytesize::ByteSize;
use model::{Config, Dtype, elements, sum};
use peak::Model;
use report::{Fit, Memory, MicroBatch, Remedy, Report};
use training::{Lora, Moments, Optimizer, Training};

use super::output::{Result, Status, print};

/// Estimate what training a model takes of memory, and what fits
///
/// FOLDER is a model's of Hugging Face, of which config.json is read (llama,
/// mistral, qwen2, qwen3). The model is taken to be built of the layers of
/// `candle_headroom::nn`.
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
    /// Type of the model [default: that of config.json, or f32]
    #[arg(long)]
    dtype: Option<Dtype>,
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
    let config = Config::read(&arguments.folder)?;
    let model = config.parameters();
    let mut training = Training {
        dtype: arguments.dtype.or(config.dtype).unwrap_or(Dtype::F32),
        optimizer: arguments.optimizer,
        moments: arguments.moments,
        lora: None,
        trained: model.clone(),
        model,
    };
    if let Some(rank) = arguments.lora_rank {
        training = training.with_adapters(&config, arguments.lora(&config, rank)?);
    }
    let report = arguments.report(&config, &training);
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
        let is_known = |target: &str| target == Lora::ALL || names.contains(&target);
        match self.lora_targets.iter().find(|target| !is_known(target)) {
            Some(target) => Err(format!(
                "--lora-targets: no layer is named `{target}`; there are {} and {}",
                names.join(", "),
                Lora::ALL
            )
            .into()),
            None => Ok(Lora {
                rank,
                targets: self.lora_targets.clone(),
            }),
        }
    }

    fn report(&self, config: &Config, training: &Training) -> Report {
        let context = config.context.unwrap_or(2048);
        let model = Model {
            config,
            training,
            length: self.length.unwrap_or(context.min(2048)),
            is_gpu: !self.cpu,
        };
        let memories = Memory::all(&self.memory, self.cpu).into_iter();
        let is_long = config.context.filter(|context| model.length > *context);
        Report {
            model: config.family.clone(),
            parameters: sum(&training.model, elements),
            trained: training.trained(),
            dtype: training.dtype,
            held: training.held(),
            held_bytes: training.held_bytes(),
            micro_batch: MicroBatch::new(&model, self.batch),
            memories: memories
                .map(|memory| Fit::new(memory, &model, self.batch))
                .collect(),
            remedies: Remedy::all(&model, self.batch),
            notes: is_long
                .map(|context| format!("{} tokens are beyond the model's {context}", model.length))
                .into_iter()
                .collect(),
        }
    }
}
