//! The Rust side of `scripts/compare-with-transformers.sh`.
//!
//! - `compare CASE`: compares a case of [`compared`] with what transformers computed, and prints the largest differences. It
//!   moves all parameters by a step, and saves model, adapter and their logits in `CASE/ours` for transformers to compare with.
//! - `compare-gguf CASE`: compares the adapter on a base in the case's `model.gguf`.
//! - `steps FOLDER WHAT BATCH TIME`: takes a forward and a backward pass for each line of standard input, and answers with a
//!   line: its seconds and the process's largest resident set since the line before, in KiB. WHAT is `full` or `lora`, then
//!   `-recomputing` if each block is recomputed.

mod compared;
mod steps;

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use compared::{Expected, Trained, adapted, adapted_gguf, descend, save_whole, whole};
use headroom_finetune::model::peft;

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let arguments: Vec<String> = arguments.collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match *arguments.as_slice() {
        ["compare", case] => compare(Path::new(case)),
        ["compare-gguf", case] => compare_gguf(Path::new(case)),
        ["steps", folder, what, batch, time] => steps::run(Path::new(folder), what, [batch, time]),
        _ => {
            println!("started by scripts/compare-with-transformers.sh");
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn compare(case: &Path) -> Result<()> {
    let (expected, adapter) = (Expected::read(case)?, case.join("adapter"));
    let ours = case.join("ours");
    std::fs::create_dir_all(&ours)?;
    let mut logits = HashMap::new();
    let trained = whole(case)?;
    step(&expected, "base", &trained, &mut logits)?;
    save_whole(&ours, &trained)?;
    let trained = adapted(case, &adapter)?;
    step(&expected, "lora", &trained, &mut logits)?;
    let lora = peft::read_options(&adapter)?;
    let name = case.to_str().context("the path is no text")?;
    let folder = ours.join("adapter");
    peft::save(&folder, (name, None), &lora, &trained.vars)?;
    candle_core::safetensors::save(&logits, ours.join("logits.safetensors"))?;
    Ok(())
}

fn compare_gguf(case: &Path) -> Result<()> {
    let trained = adapted_gguf(case, &case.join("adapter"))?;
    let (differences, _) = Expected::read(case)?.compare("lora", &trained)?;
    println!("lora logits {:e}", differences.logits);
    println!("lora gradients {:e}", differences.gradients);
    Ok(())
}

/// Compares, moves the parameters, and notes the logits after that.
fn step(
    expected: &Expected,
    kind: &str,
    trained: &Trained,
    logits: &mut HashMap<String, candle_core::Tensor>,
) -> Result<()> {
    let (differences, gradients) = expected.compare(kind, trained)?;
    println!("{kind} logits {:e}", differences.logits);
    println!("{kind} gradients {:e}", differences.gradients);
    descend(trained, &gradients, 1e-2)?;
    let tokens = expected.get("tokens")?.to_dtype(candle_core::DType::U32)?;
    let after = trained.decoder.evaluation().forward(&tokens)?;
    logits.insert(kind.to_owned(), after);
    Ok(())
}
