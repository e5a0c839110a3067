//! What is refused before anything is read, and what an option is by default.

use anyhow::{Result, bail};
use candle_core::DType;
use candle_headroom::LearningRate;

use super::{Arguments, Schedule};
use crate::support::choices::{Parameters, Place};

/// Longest sample. Attention takes time in proportion to the square of it.
const LONGEST: usize = 1 << 20;
const MOST_SAMPLES: usize = 1 << 20;

impl Arguments {
    /// Whether the program shows itself with a model of its own.
    pub fn is_demonstration(&self) -> bool {
        self.model.model.is_none() && self.data.files.is_empty()
    }

    /// Refuses what cannot be trained, before anything is read or allocated.
    pub fn check(&self) -> Result<()> {
        let (data, lora, training) = (&self.data, &self.lora, &self.training);
        match (&self.model.model, data.files.is_empty()) {
            (None, false) => bail!("no model: name a folder or a model of the hub by `--model`"),
            (Some(_), true) => {
                bail!("no data: name files to learn from, such as `data.jsonl` or `book.txt`")
            }
            (None, true) if self.save.checkpoint.is_some() => {
                bail!("--checkpoint needs a model and data of yours: give `--model` too")
            }
            _ => {}
        }
        for (name, value, most) in [
            ("--batch", data.batch, MOST_SAMPLES),
            ("--context", data.context.unwrap_or(1), LONGEST),
            ("--lora-rank", lora.lora_rank, 1 << 16),
            ("--epochs", training.epochs, usize::MAX),
            ("--steps", training.steps.unwrap_or(1), usize::MAX),
            (
                "--eval-every",
                training.eval_every.unwrap_or(1) as usize,
                usize::MAX,
            ),
            ("--sample", self.sampling.sample.max(1), LONGEST),
        ] {
            if value == 0 {
                bail!("{name} 0 is nothing: give at least 1");
            }
            if value > most {
                bail!("{name} {value} is too large: give at most {most}");
            }
        }
        for (name, value, below) in [
            ("--held-out", data.held_out, 1.),
            ("--lora-dropout", lora.lora_dropout, 1.),
            ("--learning-rate", training.learning_rate.unwrap_or(0.), 1e3),
            ("--weight-decay", training.weight_decay, 1e3),
            ("--clip", training.clip, f64::INFINITY),
            ("--temperature", self.sampling.temperature, 1e3),
        ] {
            if !(0. ..below).contains(&value) {
                bail!("{name} must be at least 0 and less than {below}, got {value}");
            }
        }
        if !lora.lora_alpha.is_finite() || lora.lora_alpha == 0. {
            let alpha = lora.lora_alpha;
            bail!("--lora-alpha must be a number other than 0, got {alpha}");
        }
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

    /// The learning rate of a run of so many updates.
    pub fn learning_rate(&self, steps: usize) -> Result<LearningRate> {
        let options = &self.training;
        let peak = match self.lora.full {
            true => 2e-5,
            false => 2e-4,
        };
        let steps = steps as u64;
        let builder = LearningRate::builder(options.learning_rate.unwrap_or(peak));
        let builder = match options.schedule {
            Schedule::Cosine => builder.cosine(steps),
            Schedule::Linear => builder.linear(steps),
            Schedule::Constant => builder,
        };
        let warm_up = options.warm_up.unwrap_or(steps / 20);
        Ok(builder.warm_up(warm_up).build()?)
    }

    /// The options that give the same run again, each in a line: all ranks have them in common, and a resumed run has them too.
    pub fn described(&self, steps: usize) -> Vec<String> {
        let (data, lora, training) = (&self.data, &self.lora, &self.training);
        let trained = match (lora.full, &lora.adapter) {
            (true, _) => "`--full`".to_owned(),
            (_, Some(adapter)) => format!("`--adapter {}`", adapter.display()),
            _ => format!(
                "`--lora-rank {} --lora-alpha {} --lora-targets {} --lora-dropout {}`",
                lora.lora_rank,
                lora.lora_alpha,
                lora.lora_targets.join(","),
                lora.lora_dropout
            ),
        };
        let rate = training
            .learning_rate
            .map_or("its default".to_owned(), |rate| rate.to_string());
        let context = data
            .context
            .map_or("its default".to_owned(), |context| context.to_string());
        let warm_up = training.warm_up.unwrap_or(steps as u64 / 20);
        vec![
            format!(
                "`--model {}`",
                self.model.model.as_deref().unwrap_or_default()
            ),
            format!("`--revision {}`", self.model.revision),
            trained,
            format!("`--batch {}`", data.batch),
            format!("`--context` {context}"),
            format!("{steps} steps"),
            format!("`--learning-rate` {rate}"),
            format!(
                "a learning rate that is {:?}, with a warm-up of {warm_up}",
                training.schedule
            ),
            format!("`--weight-decay {}`", training.weight_decay),
            format!("`--clip {}`", training.clip),
            format!("`--seed {}`", training.seed),
            format!("the type {}", self.dtype().as_str()),
            format!("moments in {:?}", self.machine.moments),
        ]
    }
}
