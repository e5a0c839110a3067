//! The program with nothing given: it makes a model of this project's text, and fine-tunes it for a task.

mod command;
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
use command::Given;

const TEXT: &str = "text.txt";
const SIGNATURES: &str = "signatures.jsonl";
/// Longest samples: attention takes little of the time.
const CONTEXT: usize = 128;
/// Many small updates teach a small model more than few large ones.
const BATCH: usize = 4;
const STEPS: usize = 150;

/// Trains a small model from nothing on text, then an adapter that writes a function's signature from its description.
pub fn run(
    arguments: &Arguments,
    group: &Group,
    output: Output,
    began: Instant,
) -> Result<Trained> {
    let given = Given::read();
    let folder = folder(arguments, &given, group)?;
    let [untrained, base, adapter] = ["untrained", "base", "adapter"].map(|name| folder.join(name));
    if group.rank() == 0 {
        let written = write(&folder, &untrained, arguments.training.seed);
        written.with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    group.barrier()?;

    let mut first = options(arguments, &given, &untrained, &base);
    first.lora.full = true;
    first.lora.adapter = None;
    first.training.learning_rate.get_or_insert(5e-3);
    first.data.held_out = 0.01;
    first.sampling.sample = 0;
    first.watch = WatchOptions::default();
    let first = Part {
        what: "1. A small model learns this project's documents and a part of its sources from nothing",
        options: first,
        data: folder.join(TEXT),
        without: &["adapter", "report", "trace", "incidents", "monitor"],
    };
    let stopped = first.run(&given, group, output, began)?;
    if matches!(stopped, Trained::Stopped(_)) {
        return Ok(stopped);
    }

    let mut second = options(arguments, &given, &base, &adapter);
    second.training.learning_rate.get_or_insert(4e-3);
    let second = Part {
        what: "2. An adapter learns to write signatures from descriptions, of the other sources",
        options: second,
        data: folder.join(SIGNATURES),
        without: &[],
    };
    second.run(&given, group, output, began)
}

/// Where everything is written: `--output`, or a new folder.
fn folder(arguments: &Arguments, given: &Given, group: &Group) -> Result<PathBuf> {
    let own = match (group.rank(), given.has("output")) {
        (0, false) => {
            let folder = tempfile::Builder::new()
                .prefix("candle-headroom-finetune-")
                .tempdir();
            folder.context("cannot make a folder")?.keep()
        }
        _ => arguments.model.output.clone(),
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

/// What both runs have in common where it is not given.
fn options(arguments: &Arguments, given: &Given, model: &Path, output: &Path) -> Arguments {
    let mut own = arguments.clone();
    own.model.model = Some(model.display().to_string());
    own.model.output = output.to_owned();
    own.data.context.get_or_insert(CONTEXT);
    own.training.steps.get_or_insert(STEPS);
    if !given.has("batch") {
        own.data.batch = BATCH;
    }
    own
}

/// One of the two runs.
struct Part {
    what: &'static str,
    options: Arguments,
    data: PathBuf,
    /// Options that are not for it.
    without: &'static [&'static str],
}

impl Part {
    fn run(
        mut self,
        given: &Given,
        group: &Group,
        output: Output,
        began: Instant,
    ) -> Result<Trained> {
        output.say(format!(
            "{}, as by this command with another --output:\n   {}\n",
            self.what,
            given.command(&self.set(), self.without, &self.data)
        ))?;
        self.options.data.files = vec![self.data];
        finetune(&self.options, group, output, began)
    }

    /// The options that are set without being given.
    fn set(&self) -> Vec<(&'static str, String)> {
        let Arguments {
            model,
            data,
            lora,
            training,
            sampling,
            ..
        } = &self.options;
        let mut set = vec![
            ("model", model.model.clone().unwrap_or_default()),
            ("output", model.output.display().to_string()),
            ("context", data.context.unwrap_or_default().to_string()),
            ("batch", data.batch.to_string()),
            (
                "learning-rate",
                training.learning_rate.unwrap_or_default().to_string(),
            ),
            ("steps", training.steps.unwrap_or_default().to_string()),
            ("held-out", data.held_out.to_string()),
            ("sample", sampling.sample.to_string()),
        ];
        if lora.full {
            set.insert(0, ("full", String::new()));
        }
        set
    }
}
