//! Fine-tunes a model of the Llama family from the Hugging Face hub or a folder: by LoRA or fully, on text, JSON lines or Parquet.
//!
//! `cargo run -p headroom-finetune -- --help` lists the options. Without options it makes a small model and fine-tunes that. Bad
//! input ends with one line and status 2.

#![forbid(unsafe_code)]

mod arguments;
mod data;
mod demonstration;
mod finetuning;
mod network;
mod plan;
mod source;
#[path = "../../../examples/support/mod.rs"]
mod support;
mod training;
mod vocabulary;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use arguments::Arguments;
use candle_headroom::TrackingAllocator;
use candle_headroom::distributed::Group;
use clap::Parser;
use support::display::Output;
use support::failing::fail;
use support::ranks;
use training::Trained;

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn main() -> ExitCode {
    let began = Instant::now();
    let arguments = Arguments::parse();
    let opened = arguments
        .check()
        .and_then(|()| ranks::open(arguments.machine.ranks));
    let group = match opened {
        Ok(group) => group,
        Err(error) => return fail("", &error),
    };
    match run(arguments, &group, began) {
        Ok(status) => ExitCode::from(status),
        Err(error) => fail(&ranks::prefix(&group), &error),
    }
}

/// Returns the status to exit with: 0, that of the signal that stopped the run, or a plan's answer.
fn run(arguments: Arguments, group: &Group, began: Instant) -> Result<u8> {
    let card = arguments.machine.plan.as_ref();
    if let Some(card) = card.filter(|_| !arguments.machine.planned) {
        return plan::run(&arguments, card, group);
    }
    let output = Output::new(arguments.print, group.rank());
    let trained = match arguments.model.model {
        None => demonstration::run(&arguments, group, output, began)?,
        Some(_) => finetuning::finetune(arguments, group, output, began)?,
    };
    match trained {
        Trained::Break(stopped) => Ok(stopped.signal.exit_status() as u8),
        Trained::Continue(progress) => progress.figures("finetune").map(|()| 0),
    }
}
