//! A convolutional net with BatchNorm learns handwritten digits within a memory budget that its batches do not fit.
//!
//! `cargo run --example train_images -- --help` lists the options. Bad input ends with one line and status 2.

mod answers;
mod arguments;
mod digits;
mod distort;
#[path = "../train_text/initial.rs"]
mod initial;
mod model;
mod outcome;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "other examples use more of it")]
mod support;

use std::process::ExitCode;
use std::time::Instant;

use answers::answers;
use anyhow::Result;
use arguments::Arguments;
use candle_core::DType;
use candle_headroom::memory::Limit;
use candle_headroom::nn::{ModuleT, VarBuilder, VarMap, loss};
use candle_headroom::{AdamW, AdaptiveTrainer, LearningRate, TrackingAllocator};
use clap::Parser;
use digits::{Digits, batch};
use distort::batches;
use initial::initialise;
use model::Net;
use outcome::Outcome;
use rand::SeedableRng;
use rand::rngs::StdRng;
use support::closing::{Course, Figure};
use support::display::{Output, Progress};
use support::failing::fail;
use support::ranks;
use support::watching::Watching;

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.check().and_then(|()| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail("", &error),
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let output = Output::new(arguments.print, 0);
    let file = arguments.data.clone().unwrap_or_else(Digits::own_file);
    let Digits { train, test } = Digits::read(&file)?;
    let budget = (!arguments.unlimited).then_some(arguments.budget);
    let limit = budget.map_or(Limit::Unlimited, Limit::from);
    let memory = arguments.device.open(limit)?;
    let device = memory.device();

    let varmap = VarMap::new();
    let net = Net::new(VarBuilder::from_varmap(&varmap, DType::F32, device))?;
    let vars = initialise(&varmap, &mut StdRng::seed_from_u64(arguments.seed))?;
    let parameters: usize = vars.iter().map(|var| var.elem_count()).sum();
    output.say(format!(
        "{} images to train on and {} to test, {parameters} parameters, batches of {}, budget {}",
        train.len(),
        test.len(),
        arguments.batch,
        budget.map_or("unlimited".to_owned(), |budget| budget.to_string()),
    ))?;

    let steps = (train.len() * arguments.passes).div_ceil(arguments.batch);
    let schedule = LearningRate::builder(arguments.learning_rate)
        .warm_up(steps as u64 / 10)
        .cosine(steps as u64)
        .build()?;
    let alone = ranks::open(false)?;
    let watching = Watching::begin(&arguments.watch(), arguments.device.ordinal(), &alone)?;
    let mut trainer = AdaptiveTrainer::builder(AdamW::builder(&varmap).build()?)
        .memory(&memory)
        .buffers(net.statistics())
        .seed(arguments.seed)
        .observer(watching.timeline())
        .build()?;
    let test_batch = batch(&test)?;
    let course = Course {
        steps,
        done: 0,
        budget,
        unit: "nats an image",
        began: Instant::now(),
    };
    let mut progress = Progress::new(output, course)?;
    progress.files = watching.files();
    let mut micro_batches = 0;
    let mut learn = || -> Result<()> {
        for batch in batches(&train, arguments, &memory)? {
            let rate = schedule.at(trainer.updates());
            trainer.optimizer_mut().set_learning_rate(rate);
            let report = trainer.step(batch, |(images, labels), _| {
                loss::cross_entropy(&net.forward_t(&images, true)?, &labels)
            })?;
            micro_batches += report.sizes.len();
            watching.step(&report)?;
            progress.step(&report)?;
            let step = report.step as usize;
            if step.is_multiple_of(steps.div_ceil(5)) {
                let answers = answers(&mut trainer, &net, &test_batch)?;
                let accuracy = Outcome::new(&test, &answers).accuracy();
                watching.timeline().number("test accuracy, %", accuracy);
                progress.say(format!("step {step}: {accuracy:.1} % of the test images"))?;
            }
        }
        Ok(())
    };
    let learned = learn();
    progress.clear();
    progress.plan = trainer.plan();
    // The page is written also where training failed, and training's error comes first.
    let files = watching.finish(&arguments.watch(), "Handwritten digits", &alone);
    learned?;
    let answers = answers(&mut trainer, &net, &test_batch)?;
    let outcome = Outcome::new(&test, &answers);
    output.say(format!("\n{outcome}"))?;
    for line in files? {
        output.say(line)?;
    }
    let parts = micro_batches as f64 / steps as f64;
    progress.measured = vec![
        Figure::new("test_accuracy", outcome.accuracy(), 2, "%"),
        Figure::new("micro_batches", parts, 2, "a step"),
    ];
    progress.finish(&arguments.next())?;
    progress.figures("train_images")
}
