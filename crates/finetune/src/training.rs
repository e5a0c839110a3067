//! The loop.

use std::ops::ControlFlow;
use std::time::Instant;

use anyhow::Result;
use bytesize::ByteSize;
use candle_core::DType;
use candle_headroom::checkpoint::Stopped;
use candle_headroom::distributed::Group;
use candle_headroom::nn::Offload;
use candle_headroom::nn::loss::LossSum;
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory, Error};

use crate::arguments::Arguments;
use crate::data::{self, Sample};
use crate::network::Network;
use crate::support::closing::{Course, Figure};
use crate::support::display::{Output, Progress};
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
    pub held_out: &'a [Sample],
    /// The options that a resumed run must have again.
    pub described: &'a [String],
    pub steps: usize,
    pub began: Instant,
}

/// How a run ended.
pub type Trained = ControlFlow<Stopped, Progress>;

/// Trains until all steps are done, or a signal comes.
pub fn train(run: &Run, samples: Vec<Sample>) -> Result<Trained> {
    let (arguments, group, output) = (run.arguments, run.group, run.output);
    let decoder = &run.network.decoder;
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
    let offload = arguments.machine.offload;
    let offload = offload.map(|bytes| Offload::new(bytes.as_u64()));
    if arguments.machine.estimate {
        output.say(format!("before the first step: {}", trainer.estimate()))?;
    }
    let loader = data::load(samples, batch, seed, group)?;
    let (save, described) = (&arguments.save, run.described);
    let (mut saving, mut loader) =
        Saving::open(save, described, group, output, &mut trainer, loader)?;
    let done = trainer.updates();
    let course = Course {
        steps: run.steps,
        done,
        budget: arguments.machine.budget,
        unit: "nats a token",
        began: run.began,
    };
    let mut progress = Progress::new(output, course)?;
    progress.files = [watching.files(), saving.files()].concat();
    let still = decoder.evaluation();
    let before = evaluate(run, &still, &mut trainer, &progress)?;
    let left = run.steps.saturating_sub(done as usize);
    if left == 0 {
        progress.say(format!(
            "the run is complete, all {done} steps are done; begin another from its result by {}",
            arguments.again()
        ))?;
    }
    let mut train = || -> Result<Option<Stopped>> {
        for (step, batch) in loader.by_ref().take(left).enumerate() {
            let rate = rates.at(trainer.updates());
            trainer.optimizer_mut().set_learning_rate(rate);
            let report = trainer.step(batch, |batch, _| match &offload {
                Some(offload) => offload.within(|| loss_sum(decoder, batch)),
                None => loss_sum(decoder, batch),
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
                evaluate(run, &still, &mut trainer, &progress)?;
            }
        }
        // Before all that can fail too.
        if group.rank() == 0 && !arguments.machine.planned {
            run.network.save(&arguments.model)?;
        }
        if left > 0 {
            saving.finish(&trainer)?;
        }
        Ok(None)
    };
    let trained = train();
    progress.clear();
    progress.plan = trainer.plan();
    // The files are written also where training failed, and training's error comes first.
    let title = format!("finetune, batches of {batch} samples");
    let files = watching.finish(&arguments.watch, &title, group);
    let stopped = trained?;
    files?.into_iter().try_for_each(|line| output.say(line))?;
    if let Some(stats) = offload.as_ref().map(Offload::stats) {
        let (pinned, moved) = (ByteSize(stats.pinned), stats.moved);
        let stayed = match (stats.over_limit, stats.refused) {
            (0, 0) => String::new(),
            (over, refused) => format!(
                ", {over} stayed over the limit, {refused} because the host pins no more memory"
            ),
        };
        progress.say(format!(
            "--offload: {moved} inputs of blocks left the device through {pinned} of pinned memory{stayed}"
        ))?;
    }
    if let Some(stopped) = stopped {
        progress.stop(&stopped, &saving.next(&stopped))?;
        return Ok(Trained::Break(stopped));
    }
    let after = match left {
        0 => before,
        _ => evaluate(run, &still, &mut trainer, &progress)?,
    };
    let result = arguments.model.output.clone();
    progress.files.push(("result", result));
    for (name, loss) in [("perplexity_before", before), ("perplexity_after", after)] {
        let perplexity = loss.map(|loss| Figure::new(name, loss.exp(), 3, "tokens"));
        progress.measured.extend(perplexity);
    }
    Ok(Trained::Continue(progress))
}

/// The loss of a batch, of which only the tokens move to the device. Targets stay: there they are counted without waiting for it.
fn loss_sum(
    decoder: &Decoder,
    (tokens, targets, starts): data::Batch,
) -> candle_core::Result<LossSum> {
    let tokens = tokens.to_device(decoder.device())?;
    match starts {
        Some(starts) => decoder.loss_sum_of_texts(&tokens, &targets, &starts),
        None => decoder.loss_sum(&tokens, &targets),
    }
}

/// The mean loss of the learned tokens of held-out samples in nats, if there are any, in batches that fit. All ranks call it, and each computes
/// its part. The decoder keeps no graph.
fn evaluate(
    run: &Run,
    decoder: &Decoder,
    trainer: &mut AdaptiveTrainer<AdamW>,
    progress: &Progress,
) -> Result<Option<f64>> {
    if run.held_out.is_empty() {
        return Ok(None);
    }
    let mut sorted: Vec<_> = run.held_out.iter().collect();
    sorted.sort_by_key(|sample| sample.tokens.len());
    let (rank, ranks) = (run.group.rank(), run.group.size());
    let batches = sorted.chunks(run.arguments.data.batch * 4);
    let sums = || -> candle_headroom::Result<Vec<[f64; 2]>> {
        let mut sums = Vec::new();
        for samples in batches.skip(rank).step_by(ranks) {
            let batch = data::collate(samples).map_err(Error::external)?;
            let processed = trainer.evaluate(&batch, |batch, _| {
                let loss = loss_sum(decoder, batch)?;
                let sum = loss.value.to_dtype(DType::F32)?.to_scalar::<f32>()?;
                Ok([f64::from(sum), loss.weight])
            })?;
            sums.extend(processed.results);
        }
        Ok(sums)
    };
    // Of all ranks in their order, and also where a loss is not finite.
    let (mut loss, mut tokens) = (0., 0.);
    for [of_chunk, weight] in run.group.collect(sums())? {
        loss += of_chunk;
        tokens += weight;
    }
    loss /= tokens;
    progress.say(format!(
        "after {} updates: loss {loss:.4}, perplexity {:.2} on {tokens} held-out tokens",
        trainer.updates(),
        loss.exp()
    ))?;
    Ok(Some(loss))
}
