//! What is refused before anything is read, and what an option is by default.

use anyhow::{Result, bail, ensure};
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
        let eval_every = training.eval_every.unwrap_or(1);
        for (name, value, most) in [
            ("--batch", data.batch, MOST_SAMPLES),
            ("--context", data.context.unwrap_or(1), LONGEST),
            ("--lora-rank", lora.lora_rank, 1 << 16),
            ("--epochs", training.epochs, usize::MAX),
            ("--steps", training.steps.unwrap_or(1), usize::MAX),
            ("--eval-every", eval_every as usize, usize::MAX),
            ("--sample", self.sampling.sample.max(1), LONGEST),
        ] {
            ensure!(value > 0, "{name} 0 is nothing: give at least 1");
            ensure!(
                value <= most,
                "{name} {value} is too large: give at most {most}"
            );
        }
        for (name, value, below) in [
            ("--held-out", data.held_out, 1.),
            ("--lora-dropout", lora.lora_dropout, 1.),
            ("--learning-rate", training.learning_rate.unwrap_or(0.), 1e3),
            ("--weight-decay", training.weight_decay, 1e3),
            ("--clip", training.clip, f64::INFINITY),
            ("--temperature", self.sampling.temperature, 1e3),
        ] {
            ensure!(
                (0. ..below).contains(&value),
                "{name} must be at least 0 and less than {below}, got {value}"
            );
        }
        let alpha = lora.lora_alpha;
        ensure!(
            alpha.is_finite() && alpha != 0.,
            "--lora-alpha must be a number other than 0, got {alpha}"
        );
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
        fn or_default<T: ToString>(value: &Option<T>) -> String {
            value
                .as_ref()
                .map_or("its default".to_owned(), T::to_string)
        }
        let (model, data, lora, training) = (&self.model, &self.data, &self.lora, &self.training);
        let name = model.model.as_deref().unwrap_or_default();
        let (rank, alpha, dropout) = (lora.lora_rank, lora.lora_alpha, lora.lora_dropout);
        let targets = lora.lora_targets.join(",");
        let schedule = training.schedule;
        let warm_up = training.warm_up.unwrap_or(steps as u64 / 20);
        vec![
            format!("`--model {name}`"),
            format!("`--revision {}`", model.revision),
            match (lora.full, &lora.adapter) {
                (true, _) => "`--full`".to_owned(),
                (_, Some(adapter)) => format!("`--adapter {}`", adapter.display()),
                _ => format!(
                    "`--lora-rank {rank} --lora-alpha {alpha} --lora-targets {targets} --lora-dropout {dropout}`"
                ),
            },
            format!("`--batch {}`", data.batch),
            format!("`--context` {}", or_default(&data.context)),
            format!("{steps} steps"),
            format!("`--learning-rate` {}", or_default(&training.learning_rate)),
            format!("a learning rate that is {schedule:?}, with a warm-up of {warm_up}"),
            format!("`--weight-decay {}`", training.weight_decay),
            format!("`--clip {}`", training.clip),
            format!("`--seed {}`", training.seed),
            format!("the type {}", self.dtype().as_str()),
            format!("moments in {:?}", self.machine.moments),
        ]
    }
}
