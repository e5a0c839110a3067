//! The main job: a byte-level transformer learns real text within a memory budget that its whole batch does not fit.
//!
//! `cargo run --example train_text -- --help` lists the options. Bad input ends with one line and status 2.

mod arguments;
mod corpus;
mod initial;
mod model;
mod sampling;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use arguments::Arguments;
use candle_headroom::checkpoint::Stopped;
use candle_headroom::distributed::Group;
use candle_headroom::memory::Limit;
use candle_headroom::nn::audit;
use candle_headroom::optim::{LossScale, ParamsAdamW};
use candle_headroom::{AdamW, AdaptiveTrainer, TrackingAllocator};
use candle_nn::{VarBuilder, VarMap};
use clap::Parser;
use corpus::{Corpus, batches};
use crc32fast::Hasher;
use initial::initialise;
use model::{Config, Transformer};
use rand::SeedableRng;
use rand::rngs::StdRng;
use sampling::sample;
use support::choices::Parameters;
use support::closing::Course;
use support::display::{Output, Progress};
use support::failing::fail;
use support::ranks;
use support::saving::Saving;
use support::watching::Watching;

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let group = match arguments
        .check()
        .and_then(|()| ranks::open(arguments.ranks))
    {
        Ok(group) => group,
        Err(error) => return fail("", &error),
    };
    match run(&arguments, &group) {
        Ok(status) => ExitCode::from(status),
        Err(error) => fail(&ranks::prefix(&group), &error),
    }
}

/// Returns the status to exit with: 0, or that of the signal that stopped the run.
fn run(arguments: &Arguments, group: &Group) -> Result<u8> {
    let mut own = arguments.clone();
    ranks::own_options(group, &mut own.device, &mut own.watch);
    let arguments = &own;
    let output = Output::new(arguments.print, group.rank());
    let files = match arguments.files.is_empty() {
        true => Corpus::own_files()?,
        false => arguments.files.clone(),
    };
    let corpus = Arc::new(Corpus::read(&files, arguments.context)?);
    ranks::compare(group, &described(arguments, &corpus))?;
    let budget = (!arguments.unlimited).then_some(arguments.budget);
    let limit = budget.map_or(Limit::Unlimited, Limit::from);
    let memory = arguments.device.open(limit)?;
    let device = memory.device();

    let mut rng = StdRng::seed_from_u64(arguments.seed);
    let varmap = VarMap::new();
    let config = Config {
        context: arguments.context,
        width: 64,
        heads: 4,
        layers: 2,
    };
    let vb = VarBuilder::from_varmap(&varmap, arguments.dtype.into(), device);
    let mut model = Transformer::new(config, vb)?;
    model.marks_blocks = true;
    let vars = initialise(&varmap, &mut rng)?;
    let parameters: usize = vars.iter().map(|var| var.elem_count()).sum();
    let ranks = match group.size() {
        1 => String::new(),
        size => format!(", {size} ranks"),
    };
    output.say(format!(
        "{parameters} parameters, {} bytes of text, batches of {} × {} bytes, budget {}{ranks}",
        corpus.len(),
        arguments.batch,
        arguments.context,
        budget.map_or("unlimited".to_owned(), |budget| budget.to_string()),
    ))?;

    let sizes = (arguments.batch, arguments.context);
    let mut loader = batches(&corpus, sizes, arguments.seed, Some(group))?;
    if arguments.audit {
        let batch = loader.next().context("no batch")??;
        let (bytes, next) = batch.into_inner();
        let (bytes, next) = (bytes.to_device(device)?, next.to_device(device)?);
        // A few texts tell as much as a batch, in less time.
        let few = arguments.batch.min(4);
        let (bytes, next) = (bytes.narrow(0, 0, few)?, next.narrow(0, 0, few)?);
        let report = audit(&varmap, || model.loss(&bytes, &next)).slopes()?;
        output.say(format!("{report:#}"))?;
        report.check()?;
        return Ok(0);
    }

    let params = ParamsAdamW {
        lr: 5e-3,
        ..ParamsAdamW::default()
    };
    let mut builder = AdamW::builder(&varmap)
        .params(params)
        .moments(arguments.moments);
    if arguments.dtype != Parameters::F32 {
        builder = builder.master_weights();
    }
    if arguments.dtype == Parameters::F16 {
        builder = builder.loss_scale(LossScale::dynamic());
    }
    let optimizer = builder.build()?;
    let watching = Watching::begin(&arguments.watch, arguments.device.ordinal(), group)?;
    let mut builder = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .recompute(arguments.recompute.into())
        .seed(arguments.seed)
        .group(group)
        .observer(watching.timeline());
    if let Some(incidents) = watching.incidents() {
        builder = builder.observer(incidents);
    }
    let mut trainer = builder.build()?;
    if arguments.estimate {
        output.say(format!("before the first step: {}", trainer.estimate()))?;
    }
    let (mut saving, mut loader) =
        Saving::open(&arguments.save, &[], group, output, &mut trainer, loader)?;
    let done = trainer.updates();
    let course = Course {
        steps: arguments.steps,
        done,
        budget,
        unit: "nats a byte",
        began: Instant::now(),
    };
    let mut progress = Progress::new(output, course)?;
    progress.files = [watching.files(), saving.files()].concat();
    if done >= arguments.steps as u64 {
        progress.say(format!(
            "nothing is left to do: the run has {done} steps; give more by `--steps`"
        ))?;
        progress.finish(&arguments.next())?;
        return Ok(0);
    }
    let mut train = || -> Result<Option<Stopped>> {
        let left = arguments.steps - done as usize;
        for (step, batch) in loader.by_ref().take(left).enumerate() {
            // Only the micro-batch moves to the device.
            let report = trainer.step(batch, |(bytes, next), _| {
                model.loss(&bytes.to_device(device)?, &next.to_device(device)?)
            })?;
            watching.step(&report)?;
            progress.step(&report)?;
            let stopped = saving.after(&report, &trainer)?;
            if stopped.is_some() {
                return Ok(stopped);
            }
            if arguments.estimate && step == 0 {
                progress.say(format!("after the first step: {}", trainer.estimate()))?;
            }
        }
        saving.finish(&trainer)?;
        Ok(None)
    };
    let trained = train();
    progress.clear();
    progress.plan = trainer.plan();
    // The files are written also where training failed, and training's error comes first.
    let title = format!(
        "train_text, batches of {} × {} bytes",
        arguments.batch, arguments.context
    );
    let files = watching.finish(&arguments.watch, &title, group);
    let stopped = trained?;
    for line in files? {
        output.say(line)?;
    }
    if let Some(stopped) = stopped {
        progress.stop(&stopped, &saving.next(&stopped))?;
        return Ok(stopped.signal.exit_status() as u8);
    }
    if output.is_text() {
        let mut rng = StdRng::seed_from_u64(!arguments.seed);
        let text = sample(&model, &corpus, arguments.context, device, &mut rng)?;
        output.say(format!("\n{text}\n"))?;
    }
    progress.finish(&arguments.next())?;
    progress.figures("train_text")?;
    Ok(0)
}

/// What all ranks must have in common.
fn described(arguments: &Arguments, corpus: &Corpus) -> Vec<String> {
    let mut hasher = Hasher::new();
    hasher.update(corpus.text(0..corpus.len()));
    vec![
        format!("`--batch {}`", arguments.batch),
        format!("`--context {}`", arguments.context),
        format!("`--steps {}`", arguments.steps),
        format!("`--seed {}`", arguments.seed),
        ranks::path("--report", &arguments.watch.report),
        ranks::path("--trace", &arguments.watch.trace),
        format!(
            "{} bytes of text with the checksum {:08x}",
            corpus.len(),
            hasher.finalize()
        ),
    ]
}
