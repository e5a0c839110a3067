//! The options: what is refused before anything is read, and what an option is by default.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use bytesize::ByteSize;
use candle_core::DType;
use candle_headroom::LearningRate;
use candle_headroom::nn::lora::Lora;
use clap::{Args, Parser, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use crate::support::choices::{MomentBits, Parameters, Place, Recomputing};
use crate::support::closing::Next;
use crate::support::options::{PrintOptions, SaveOptions, WatchOptions};
use headroom_finetune::model::Quantization;

/// Samples of an update, and tokens of a sample. Attention takes time in proportion to the square of these.
const LARGEST: usize = 1 << 20;
const MOST_STEPS: usize = u32::MAX as usize;

/// Fine-tunes a decoder of the Llama family (Llama 2 and 3, Mistral, Qwen2, Qwen3, SmolLM), by LoRA or fully, within a memory budget.
///
/// Without `--model` and data it shows itself: it makes a small model of this project's own text, without a network, and fine-tunes that.
#[derive(Debug, Clone, Parser)]
#[command(args_override_self = true)]
pub struct Arguments {
    #[command(flatten)]
    pub model: ModelOptions,
    #[command(flatten)]
    pub data: DataOptions,
    #[command(flatten)]
    pub lora: LoraOptions,
    #[command(flatten)]
    pub training: TrainingOptions,
    #[command(flatten)]
    pub machine: MachineOptions,
    #[command(flatten)]
    pub sampling: SamplingOptions,
    #[command(flatten)]
    pub save: SaveOptions,
    #[command(flatten)]
    pub watch: WatchOptions,
    #[command(flatten)]
    pub print: PrintOptions,
}

// No documentation of the groups: clap would show it instead of the program's.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// Model to begin with: a folder with config.json, tokenizer.json and model.safetensors, or an id on the Hugging Face hub, such as
    /// HuggingFaceTB/SmolLM2-135M. What was downloaded before is taken from the hub's cache.
    #[arg(long, value_name = "FOLDER|ID")]
    pub model: Option<String>,
    /// GGUF file with the weights of this model, of which those of the blocks' linear layers stay quantized as they are.
    #[arg(long, value_name = "FILE.gguf", conflicts_with = "full")]
    pub weights: Option<PathBuf>,
    /// Quantizes the weights of the blocks' linear layers when they are read, beside which an adapter is trained: q8_0, q6_k, q5_k, q4_k, q4_0
    /// of llama.cpp, or nf4 of bitsandbytes with double quantization.
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["full", "weights"])]
    pub quantize: Option<Quantization>,
    /// Branch, tag or commit on the hub.
    #[arg(long, default_value = "main")]
    pub revision: String,
    /// Uses no network: a model of the hub must be in its cache.
    #[arg(long)]
    pub offline: bool,
    /// Folder for the result: an adapter in PEFT's format, or with `--full` a whole model as Hugging Face folders have it.
    #[arg(long, value_name = "DIR", default_value = "finetuned")]
    pub output: PathBuf,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Data")]
pub struct DataOptions {
    /// Files to learn from. JSON lines (.jsonl) have `messages`, of which the assistant's are learned in the format of the model's chat
    /// template, `prompt` and `completion`, of which the completion is learned, or `text`; Parquet the last three. Any other file is text.
    #[arg(value_name = "DATA")]
    pub files: Vec<PathBuf>,
    /// File to evaluate on, instead of a part of DATA; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub eval: Vec<PathBuf>,
    /// Part of DATA that is not learned, but evaluated on before and after training.
    #[arg(long, value_name = "PART", default_value_t = 0.05)]
    pub held_out: f64,
    /// Longest sample in tokens; by default 512, or what the model allows. Text is cut into samples of this length. Where a prompt and its
    /// completion are longer, the prompt loses its beginning; a conversation is first cut into its answers.
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<usize>,
    /// Number of samples in an update; with `--ranks` in that of all ranks together.
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
}

#[derive(Debug, Clone, Args, Serialize)]
#[command(next_help_heading = "What is trained")]
pub struct LoraOptions {
    /// Trains all parameters instead of a LoRA adapter.
    #[arg(long)]
    pub full: bool,
    /// Rank of the adapter's matrices.
    #[arg(long, value_name = "RANK", default_value_t = 16)]
    pub lora_rank: usize,
    /// The adapter's output is multiplied by this over the rank.
    #[arg(long, value_name = "ALPHA", default_value_t = 32.)]
    pub lora_alpha: f64,
    /// Layers that get an adapter, separated by commas, such as q_proj,v_proj or layers.0.*; `all-linear` for all linear layers of the blocks.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[arg(default_value = "all-linear")]
    pub lora_targets: Vec<String>,
    /// Dropout of the adapter's input.
    #[arg(long, value_name = "RATE", default_value_t = 0.)]
    pub lora_dropout: f64,
    /// Divides the alpha by the square root of the rank instead (rsLoRA).
    #[arg(long, conflicts_with = "full")]
    pub rslora: bool,
    /// Trains a magnitude for each row of the weights too (DoRA).
    #[arg(long, conflicts_with = "full")]
    pub dora: bool,
    /// Adapter to begin with, in PEFT's format, with its own options.
    #[arg(long, value_name = "DIR", conflicts_with = "full")]
    #[serde(skip)]
    pub adapter: Option<PathBuf>,
}

// What is not serialized may be another where a run is resumed: the number of its steps is described instead.
#[derive(Debug, Clone, Args, Serialize)]
#[command(next_help_heading = "Training")]
pub struct TrainingOptions {
    /// Number of times that all samples are learned.
    #[arg(long, default_value_t = 1)]
    #[serde(skip)]
    pub epochs: usize,
    /// Number of updates, instead of `--epochs`.
    #[arg(long)]
    #[serde(skip)]
    pub steps: Option<usize>,
    /// Highest learning rate; by default 2e-4 for an adapter and 2e-5 with `--full`.
    #[arg(long, value_name = "RATE")]
    pub learning_rate: Option<f64>,
    /// Course of the learning rate after the warm-up.
    #[arg(long, value_enum, default_value_t)]
    pub schedule: Schedule,
    /// Updates in which the learning rate rises; by default a twentieth of all.
    #[arg(long, value_name = "STEPS")]
    pub warm_up: Option<u64>,
    /// Weight decay of matrices.
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    pub weight_decay: f64,
    /// Largest norm of a gradient; a larger one is scaled down. 0 leaves it.
    #[arg(long, value_name = "NORM", default_value_t = 1.)]
    pub clip: f64,
    /// Evaluates after every so many updates too.
    #[arg(long, value_name = "STEPS")]
    #[serde(skip)]
    pub eval_every: Option<u64>,
    /// Seed of the adapter, the order of samples, dropout and the sampled text.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Device and memory")]
pub struct MachineOptions {
    /// Device to train on: `cpu`, or `cuda:0` for the first GPU. With `--ranks`, the first rank on a machine takes this GPU, the others
    /// the next ones.
    #[arg(long, default_value = "cpu")]
    pub device: Place,
    /// Memory that each process may use on the device, such as 6GiB; by default all of it.
    #[arg(long)]
    pub budget: Option<ByteSize>,
    /// Type of the computation, and of the parameters but for an adapter's, which are f32; by default f32 on the CPU and bf16 on a GPU. With
    /// `--full`, bf16 and f16 have master weights in f32; f16 has a dynamic loss scale.
    #[arg(long, value_enum)]
    pub dtype: Option<Parameters>,
    /// Type of AdamW's moments: 8, 4 or about 2 bytes for each trained parameter.
    #[arg(long, value_enum, default_value_t)]
    pub moments: MomentBits,
    /// Whether the model's blocks are recomputed in the backward pass.
    #[arg(long, value_enum, default_value_t)]
    pub recompute: Recomputing,
    /// Most memory of the host that is pinned for the inputs of recomputed blocks, such as 16GiB: they leave a GPU and come back. It needs
    /// blocks that are recomputed: `--recompute always`. On the CPU nothing moves.
    #[arg(long, value_name = "BYTES")]
    pub offload: Option<ByteSize>,
    /// Prints what training takes of memory: before the first step, and after it with what a micro-batch took.
    #[arg(long)]
    pub estimate: bool,
    /// Says whether the training fits onto this card, such as "RTX 4090" or 24GiB, and with what batch, before any weights are downloaded: three
    /// steps as a dry run. Needs a build with the feature `cuda`, and the program `headroom`.
    #[arg(long, value_name = "CARD", conflicts_with_all = ["checkpoint", "report", "trace", "incidents", "monitor", "ranks", "json"])]
    pub plan: Option<String>,
    /// Trains on zeros in the place of weights, and saves nothing: what `--plan` starts, which then is the plan's own.
    #[arg(long, hide = true)]
    pub planned: bool,
    /// Trains one model together with the other processes that a launcher has started: `mpirun -n 2 finetune --ranks …`.
    #[arg(long)]
    pub ranks: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampled text")]
pub struct SamplingOptions {
    /// What the model continues before and after training; by default the beginning of a held-out sample.
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Most tokens to continue with, each the most probable one; 0 samples nothing.
    #[arg(long, value_name = "TOKENS", default_value_t = 48)]
    pub sample: usize,
}

/// The course of the learning rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ValueEnum)]
pub enum Schedule {
    /// Falls along half a cosine to 0.
    #[default]
    Cosine,
    /// Falls along a line to 0.
    Linear,
    Constant,
}

impl Arguments {
    /// Refuses what cannot be trained, before anything is read or allocated.
    pub fn check(&self) -> Result<()> {
        let (data, training) = (&self.data, &self.training);
        match (&self.model.model, data.files.is_empty()) {
            (None, false) => bail!("no model: name a folder or a model of the hub by `--model`"),
            (Some(_), true) => bail!("no data: name files to learn from, such as `data.jsonl`"),
            (None, true)
                if self.save.checkpoint.is_some()
                    || self.machine.ranks
                    || self.machine.plan.is_some()
                    || self.model.weights.is_some() =>
            {
                bail!(
                    "--checkpoint, --ranks, --plan and --weights need a model and data of yours: give `--model` too"
                )
            }
            _ => {}
        }
        let machine = &self.machine;
        ensure!(
            machine.offload.is_none() || !matches!(machine.recompute, Recomputing::Never),
            "--offload moves the inputs of recomputed blocks: give `--recompute always`"
        );
        let eval_every = training.eval_every.unwrap_or(1);
        for (name, value, most) in [
            ("--batch", data.batch, LARGEST),
            ("--context", data.context.unwrap_or(1), LARGEST),
            ("--epochs", training.epochs, MOST_STEPS),
            ("--steps", training.steps.unwrap_or(1), MOST_STEPS),
            ("--eval-every", eval_every as usize, MOST_STEPS),
            ("--sample", self.sampling.sample.max(1), LARGEST),
        ] {
            ensure!(
                (1..=most).contains(&value),
                "{name} must be at least 1 and at most {most}, got {value}"
            );
        }
        for (name, value, below) in [
            ("--held-out", data.held_out, 1.),
            ("--learning-rate", training.learning_rate.unwrap_or(0.), 1e3),
            ("--weight-decay", training.weight_decay, 1e3),
            ("--clip", training.clip, f64::INFINITY),
        ] {
            ensure!(
                (0. ..below).contains(&value),
                "{name} must be at least 0 and less than {below}, got {value}"
            );
        }
        self.lora.new_adapter().check()?;
        self.watch.check()
    }

    /// The type of the computation.
    pub fn dtype(&self) -> DType {
        let of_device = match self.machine.device {
            Place::Cpu => Parameters::F32,
            Place::Cuda(_) => Parameters::Bf16,
        };
        self.machine.dtype.unwrap_or(of_device).into()
    }

    /// The highest learning rate.
    fn peak(&self) -> f64 {
        let peak = if self.lora.full { 2e-5 } else { 2e-4 };
        self.training.learning_rate.unwrap_or(peak)
    }

    /// The learning rate of a run of so many updates.
    pub fn learning_rate(&self, steps: usize) -> Result<LearningRate> {
        let (options, steps) = (&self.training, steps as u64);
        let builder = LearningRate::builder(self.peak());
        let builder = match options.schedule {
            Schedule::Cosine => builder.cosine(steps),
            Schedule::Linear => builder.linear(steps),
            Schedule::Constant => builder,
        };
        let warm_up = options.warm_up.unwrap_or(steps / 20);
        Ok(builder.warm_up(warm_up).build()?)
    }

    /// The options of a run that begins from the result of this one.
    pub fn again(&self) -> String {
        let option = if self.lora.full { "model" } else { "adapter" };
        let result = self.model.output.display();
        format!("`--{option} {result} --output {result}-2`")
    }

    /// What may be tried after a run. A larger batch may be worse.
    pub fn next(&self) -> Next {
        let rate = self.peak() / 10.;
        let steadier = format!("`--learning-rate {rate:.1e}`: the loss is not finite");
        Next {
            batch: None,
            steadier: Some(steadier),
            otherwise: format!("{}: trains the result further", self.again()),
        }
    }

    /// The options that give the same run again, each in a line: all ranks have them in common, and a resumed run has them too.
    pub fn described(&self, steps: usize) -> Vec<String> {
        let own = json!({
            "model": self.model.model,
            "revision": self.model.revision,
            "weights": self.model.weights,
            "quantize": self.model.quantize.map(Quantization::name),
            "batch": self.data.batch,
            "context": self.data.context,
            "steps": steps,
            "dtype": self.dtype().as_str(),
            "moments": format!("{:?}", self.machine.moments),
            "adapter": self.lora.adapter.as_ref().map(|folder| folder.display().to_string()),
        });
        let groups = [own, json!(self.lora), json!(self.training)];
        let options = groups.iter().filter_map(Value::as_object).flatten();
        let line = |(name, value): (&String, &Value)| match value {
            Value::Null => format!("no `--{}`", name.replace('_', "-")),
            value => format!("`--{} {value}`", name.replace('_', "-")),
        };
        options.map(line).collect()
    }
}

impl ModelOptions {
    /// What is quantized, in words.
    pub fn of_base(&self) -> String {
        match (&self.weights, self.quantize) {
            (Some(file), _) => format!(" and as in {}", file.display()),
            (None, Some(kind)) => format!(" and {}", kind.name()),
            (None, None) => String::new(),
        }
    }
}

impl LoraOptions {
    pub fn new_adapter(&self) -> Lora {
        Lora {
            rank: self.lora_rank,
            alpha: self.lora_alpha,
            targets: self.lora_targets.clone(),
            dropout: self.lora_dropout,
            rank_stabilized: self.rslora,
            dora: self.dora,
        }
    }
}
