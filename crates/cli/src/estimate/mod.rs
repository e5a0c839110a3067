//! `headroom estimate`: does a model fit, and what helps if not?

mod model;
mod report;
mod training;

use std::path::PathBuf;

use bytesize::ByteSize;
use model::{Config, Dtype, Weights, elements, sum};
use report::{Fit, Memory, MicroBatch, Remedy, Report};
use training::{Lora, Model, Moments, Optimizer, Training};

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
    /// Type of the model [default: as saved, or f32]
    #[arg(long)]
    dtype: Option<Dtype>,
    /// What updates the parameters
    #[arg(long, default_value = "adamw")]
    optimizer: Optimizer,
    /// Type of the optimizer's moments
    #[arg(long, default_value = "f32")]
    moments: Moments,
    /// Keep an f32 copy of each parameter of a half type, as `finetune` does
    #[arg(long, conflicts_with = "lora_rank")]
    master_weights: bool,
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
    let wrong = |why: &str| format!("{}: {why}", folder.display());
    match folder.is_dir() {
        true => {}
        false if folder.exists() => return Err(wrong("not a folder").into()),
        false => return Err(wrong("no such folder").into()),
    }
    let (config, weights) = (Config::read(folder)?, Weights::read(folder)?);
    let model = match (&config, &weights) {
        (Some(config), _) => config.parameters(),
        (None, Some(weights)) => weights.shapes.clone(),
        (None, None) => {
            let folder = folder.display();
            return Err(format!("{folder} has neither config.json nor safetensors files").into());
        }
    };
    let saved = weights.as_ref().and_then(|weights| weights.dtype);
    let saved = saved.or(config.as_ref().and_then(|config| config.dtype));
    let mut training = Training {
        dtype: arguments.dtype.or(saved).unwrap_or(Dtype::F32),
        optimizer: arguments.optimizer,
        moments: arguments.moments,
        has_master_weights: arguments.master_weights,
        lora: None,
        trained: model.clone(),
        model,
    };
    if let Some(rank) = arguments.lora_rank {
        let config = config.as_ref();
        let config = config.ok_or("--lora-rank needs the folder's config.json")?;
        training = training.with_adapters(config, arguments.lora(config, rank)?);
    }
    let report = arguments.report(config.as_ref(), weights.as_ref(), &training);
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

    fn report(
        &self,
        config: Option<&Config>,
        weights: Option<&Weights>,
        training: &Training,
    ) -> Report {
        let context = config.and_then(|config| config.context).unwrap_or(2048);
        let length = self.length.unwrap_or(context.min(2048));
        let model = config.map(|config| Model {
            config,
            training,
            length,
            is_gpu: !self.cpu,
        });
        let (model, samples, held) = (model.as_ref(), self.batch, training.held_bytes());
        let memories = Memory::all(&self.memory, self.cpu).into_iter();
        Report {
            model: config.map_or("safetensors".to_owned(), |config| config.family.clone()),
            parameters: sum(&training.model, elements),
            trained: training.trained(),
            dtype: training.dtype,
            held: training.held(),
            held_bytes: held,
            micro_batch: model.map(|model| MicroBatch::new(model, samples)),
            memories: memories
                .map(|memory| Fit::new(memory, model, samples, held))
                .collect(),
            remedies: model.map_or(Vec::new(), |model| Remedy::all(model, samples)),
            notes: notes(config, weights, length),
        }
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
    let described = sum(&config.parameters(), elements);
    let there = weights.map_or(described, |weights| sum(&weights.shapes, elements));
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
