//! Runs candle-transformers' models on small configurations. scripts/try-models.sh builds this program three times, with candle_nn,
//! with plain compositions and with candle_headroom::nn, and has the last one print the table.

mod inputs;
mod memory;
mod models;
mod outcome;
mod parameters;
mod run;
mod table;

use outcome::Outcome;
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const USAGE: &str = "usage: models list | quick | run FOLDER MODEL… | slopes MODEL | table ORIGINAL|- PLAIN OURS|- MODEL…";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["list"] => models::all()
            .iter()
            .for_each(|model| println!("{}", model.name)),
        ["quick"] => models::all()
            .iter()
            .filter(|model| !model.slow)
            .for_each(|model| println!("{}", model.name)),
        ["run", folder, names @ ..] => names
            .iter()
            .try_for_each(|name| run_one(Path::new(folder), name))?,
        ["slopes", name] => run::slopes(&models::named(name)?)?,
        ["table", original, plain, ours, names @ ..] => {
            let there = |folder: &str| (folder != "-").then(|| PathBuf::from(folder));
            table::print(
                there(original).as_deref(),
                Path::new(plain),
                there(ours).as_deref(),
                names,
            )?
        }
        _ => anyhow::bail!(USAGE),
    }
    Ok(())
}

/// In a thread of its own: candle's backward pass is recursive, and a model may panic.
fn run_one(folder: &Path, name: &str) -> anyhow::Result<()> {
    let model = models::named(name)?;
    let result = std::thread::Builder::new()
        .stack_size(256 << 20)
        .spawn(move || run::run(&model))?
        .join();
    let (outcome, gradients) = match result {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => (
            Outcome {
                error: Some(error.to_string()),
                ..Outcome::default()
            },
            Default::default(),
        ),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or(panic.downcast_ref::<&str>().map(|text| text.to_string()));
            (
                Outcome {
                    error: Some(format!("panicked: {}", text.unwrap_or_default())),
                    ..Outcome::default()
                },
                Default::default(),
            )
        }
    };
    match &outcome.error {
        Some(error) => eprintln!("{name}: {error}"),
        None => eprintln!(
            "{name}: {} of {} Vars, {:.2} s",
            gradients.len(),
            outcome.vars.len(),
            outcome.seconds
        ),
    }
    outcome.save(folder, name, &gradients)
}
