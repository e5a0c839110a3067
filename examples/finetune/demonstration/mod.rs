//! The program with nothing given: it makes a model of this project's text, and fine-tunes it for a task.

mod source_text;
mod tiny_model;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use candle_headroom::distributed::Group;
use serde_json::json;

use crate::arguments::Arguments;
use crate::finetuning::finetune;
use crate::support::display::Output;
use crate::support::options::WatchOptions;
use crate::training::Trained;

const TEXT: &str = "text.txt";
const SIGNATURES: &str = "signatures.jsonl";
/// Longest samples: attention takes little of the time.
const CONTEXT: usize = 128;
/// Many small updates teach a small model more than few large ones.
const BATCH: usize = 4;

/// Trains a small model from nothing on text, then an adapter that writes a function's signature from its description.
pub fn run(
    arguments: &Arguments,
    group: &Group,
    output: Output,
    began: Instant,
) -> Result<Trained> {
    let folder = folder(arguments, group)?;
    let [untrained, base, adapter] = ["untrained", "base", "adapter"].map(|name| folder.join(name));
    if group.rank() == 0 {
        let written = write(&folder, &untrained, arguments.training.seed);
        written.with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    group.barrier()?;

    let mut first = options(arguments, &untrained, &base, &folder.join(TEXT));
    first.lora.full = true;
    first.lora.adapter = None;
    first.training.learning_rate.get_or_insert(5e-3);
    first.training.steps.get_or_insert(150);
    first.data.held_out = 0.01;
    first.sampling.sample = 0;
    first.watch = WatchOptions::default();
    say(
        output,
        "1. A small model learns this project's documents and a part of its sources from nothing",
        &first,
    )?;
    let stopped = finetune(&first, group, output, began)?;
    if matches!(stopped, Trained::Stopped(_)) {
        return Ok(stopped);
    }

    let mut second = options(arguments, &base, &adapter, &folder.join(SIGNATURES));
    second.training.learning_rate.get_or_insert(4e-3);
    second.training.steps.get_or_insert(150);
    say(
        output,
        "2. An adapter learns to write signatures from descriptions, of the other sources",
        &second,
    )?;
    finetune(&second, group, output, began)
}

/// Where everything is written: `--output`, or a folder of this process's own.
fn folder(arguments: &Arguments, group: &Group) -> Result<PathBuf> {
    let given = &arguments.model.output;
    let own = match given == Path::new("finetuned") {
        true => {
            std::env::temp_dir().join(format!("candle-headroom-finetune-{}", std::process::id()))
        }
        false => given.clone(),
    };
    let all = group.gather(own.to_string_lossy().as_bytes())?;
    let of_first = all
        .first()
        .map(|path| String::from_utf8_lossy(path).into_owned());
    Ok(of_first.map_or(own, PathBuf::from))
}

fn write(folder: &Path, untrained: &Path, seed: u64) -> Result<()> {
    std::fs::create_dir_all(untrained)?;
    let text = source_text::text()?;
    std::fs::write(folder.join(TEXT), &text)?;
    let pairs = source_text::signatures()?.into_iter();
    let pairs =
        pairs.map(|(prompt, completion)| json!({ "prompt": prompt, "completion": completion }));
    let lines: Vec<String> = pairs.map(|pair| format!("{pair}\n")).collect();
    std::fs::write(folder.join(SIGNATURES), lines.concat())?;
    tiny_model::write(untrained, &text, CONTEXT, seed)
}

fn options(arguments: &Arguments, model: &Path, output: &Path, data: &Path) -> Arguments {
    let mut own = arguments.clone();
    own.model.model = Some(model.display().to_string());
    own.model.output = output.to_owned();
    own.data.files = vec![data.to_owned()];
    own.data.context.get_or_insert(CONTEXT);
    own.data.batch = own.data.batch.min(BATCH);
    own
}

/// Prints the command that does the same.
fn say(output: Output, what: &str, options: &Arguments) -> Result<()> {
    let kind = match options.lora.full {
        true => "--full ",
        false => "",
    };
    output.say(format!(
        "{what}:\n   finetune {kind}--model {} --context {} --batch {} --learning-rate {} --steps {} --output {} {}\n",
        options.model.model.as_deref().unwrap_or_default(),
        options.data.context.unwrap_or_default(),
        options.data.batch,
        options.training.learning_rate.unwrap_or_default(),
        options.training.steps.unwrap_or_default(),
        options.model.output.display(),
        options
            .data
            .files
            .iter()
            .map(|file| file.display().to_string())
            .collect::<Vec<_>>()
            .join(" "),
    ))
}
