//! The loop.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use candle_headroom::checkpoint::Stopped;
use candle_headroom::distributed::Group;
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory};

use crate::arguments::Arguments;
use crate::data::{self, Sample};
use crate::evaluation::Evaluation;
use crate::network::Network;
use crate::support::display::{Course, Output, Progress};
use crate::support::saving::Saving;
use crate::support::watching::Watching;
use headroom_finetune::model::Decoder;

/// What a run is made of.
pub struct Run<'a> {
    pub arguments: &'a Arguments,
    pub group: &'a Group,
    pub output: Output,
    pub memory: &'a DeviceMemory,
    pub network: &'a Network,
    /// The same decoder for evaluation.
    pub still: &'a Decoder,
    pub held_out: &'a [Sample],
    /// Saves the result. All ranks call it.
    pub save: &'a dyn Fn() -> Result<()>,
    /// The options that a resumed run must have again.
    pub described: &'a [String],
    pub steps: usize,
    pub began: Instant,
}

/// How a run ended.
pub enum Trained {
    Stopped(Stopped),
    Done(Done),
}

/// The numbers of a whole run.
pub struct Done {
    /// `None` if nothing was left to do.
    progress: Option<Progress>,
    /// Before and after; `None` if no samples are held out.
    evaluations: Option<[Evaluation; 2]>,
}

/// Trains until all steps are done, or a signal comes.
pub fn train(run: &Run, samples: Arc<Vec<Sample>>) -> Result<Trained> {
    let Run {
        arguments,
        group,
        output,
        ..
    } = *run;
    let device = run.memory.device();
    let (batch, seed) = (arguments.data.batch, arguments.training.seed);
    let rates = arguments.learning_rate(run.steps)?;
    let watching = Watching::begin(&arguments.watch, arguments.machine.device.ordinal(), group)?;
    let mut builder = AdaptiveTrainer::builder(run.network.optimizer(arguments, &rates)?)
        .memory(run.memory)
        .recompute(arguments.machine.recompute.into())
        .seed(seed)
        .group(group)
        .observer(watching.timeline());
    if let Some(incidents) = watching.incidents() {
        builder = builder.observer(incidents);
    }
    let mut trainer = builder.build()?;
    if arguments.machine.estimate {
        output.say(format!("before the first step: {}", trainer.estimate()))?;
    }
    let loader = data::load(&samples, batch, seed, group)?;
    let (mut saving, mut loader) = Saving::open(
        &arguments.save,
        run.described,
        group,
        output,
        &mut trainer,
        loader,
    )?;
    let evaluate = |trainer: &mut AdaptiveTrainer<AdamW>, say: &dyn Fn(String) -> Result<()>| {
        if run.held_out.is_empty() {
            return Ok(None);
        }
        let samples = batch.saturating_mul(4);
        let evaluation = Evaluation::of(run.still, run.held_out, samples, trainer, group)?;
        say(format!("after {} updates: {evaluation}", trainer.updates()))?;
        anyhow::Ok(Some(evaluation))
    };
    let say = |line: String| output.say(line);
    let before = evaluate(&mut trainer, &say)?;
    let done = trainer.updates();
    let title = format!("finetune, batches of {batch} samples");
    let files = || watching.finish(&arguments.watch, &title, group);
    if done >= run.steps as u64 {
        (run.save)()?;
        files()?.into_iter().try_for_each(say)?;
        let option = match arguments.lora.full {
            true => "--model",
            false => "--adapter",
        };
        output.say(format!(
            "the run is complete, all {done} steps are done; begin another from its result by `{option} {}`",
            arguments.model.output.display()
        ))?;
        let evaluations = before.map(|before| [before; 2]);
        return Ok(Trained::Done(Done {
            progress: None,
            evaluations,
        }));
    }
    let course = Course {
        steps: run.steps,
        done,
        budget: arguments.machine.budget,
        unit: "nats a token",
        began: run.began,
    };
    let mut progress = Progress::new(output, course)?;
    let mut train = || -> Result<Option<Stopped>> {
        let left = run.steps - done as usize;
        for (step, batch) in loader.by_ref().take(left).enumerate() {
            let rate = rates.at(trainer.updates());
            trainer.optimizer_mut().set_learning_rate(rate);
            // Only the micro-batch's tokens move to the device. Targets stay: there they are counted without waiting for it.
            let report = trainer.step(batch, |(tokens, targets), _| {
                run.network
                    .decoder
                    .loss_sum(&tokens.to_device(device)?, &targets, None)
            })?;
            watching.step(&report)?;
            progress.step(&report)?;
            let stopped = saving.after(&report, &trainer)?;
            if stopped.is_some() {
                return Ok(stopped);
            }
            if arguments.machine.estimate && step == 0 {
                progress.say(format!("after the first step: {}", trainer.estimate()))?;
            }
            let is_due = |every: u64| trainer.updates().is_multiple_of(every);
            if step + 1 < left && arguments.training.eval_every.is_some_and(is_due) {
                evaluate(&mut trainer, &|line| progress.say(line))?;
            }
        }
        // Before all that can fail too.
        (run.save)()?;
        saving.finish(&trainer)?;
        progress.finish(trainer.plan())?;
        Ok(None)
    };
    let trained = train();
    // The files are written also where training failed, and training's error comes first.
    let files = files();
    let stopped = trained?;
    files?.into_iter().try_for_each(say)?;
    if let Some(stopped) = stopped {
        progress.clear();
        output.say(saving.line(&stopped))?;
        return Ok(Trained::Stopped(stopped));
    }
    let after = evaluate(&mut trainer, &say)?;
    let evaluations = before.zip(after).map(|(before, after)| [before, after]);
    Ok(Trained::Done(Done {
        progress: Some(progress),
        evaluations,
    }))
}

impl Done {
    /// Prints the numbers for programs.
    pub fn figures(&self, output: Output) -> Result<()> {
        if let Some([before, after]) = &self.evaluations {
            for (name, evaluation) in [("before", before), ("after", after)] {
                let perplexity = evaluation.perplexity();
                output.say(format!(
                    "figure: finetune/perplexity_{name} = {perplexity:.3} tokens"
                ))?;
            }
        }
        match &self.progress {
            Some(progress) => progress.figures("finetune"),
            None => Ok(()),
        }
    }
}
