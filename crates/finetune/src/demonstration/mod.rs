//! The program with nothing given: it makes a model of this project's text, and fine-tunes it for a task.

mod material;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use candle_headroom::distributed::Group;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, Parser};

use crate::arguments::Arguments;
use crate::finetuning::finetune;
use crate::support::display::Output;
use crate::training::Trained;

/// Longest samples: attention takes little of the time.
const CONTEXT: usize = 128;
/// Many small updates teach a small model more than few large ones.
const BATCH: usize = 4;
const STEPS: usize = 150;

/// An option's name, and its value; `None` leaves it out.
type Setting<'a> = (&'a str, Option<&'a OsStr>);

/// Trains a small model from nothing on text, then an adapter that writes a function's signature from its description.
pub fn run(
    arguments: &Arguments,
    group: &Group,
    output: Output,
    began: Instant,
) -> Result<Trained> {
    let given = Arguments::command().get_matches();
    let folder = match given.value_source("output") {
        Some(ValueSource::CommandLine) => arguments.model.output.clone(),
        _ => {
            let mut folder = tempfile::Builder::new();
            let folder = folder.prefix("candle-headroom-finetune-").tempdir();
            folder.context("cannot make a folder")?.keep()
        }
    };
    let [untrained, base, adapter] = ["untrained", "base", "adapter"].map(|name| folder.join(name));
    let written = material::write(&folder, &untrained, CONTEXT, arguments.training.seed);
    written.with_context(|| format!("cannot write to {}", folder.display()))?;
    let train = |what: &str, set: &[Setting], learning_rate: f64, data: &str| {
        let words = command(&given, set, learning_rate, &folder.join(data));
        let quoted: Vec<_> = words.iter().map(|word| quoted(word)).collect();
        output.say(format!(
            "{what}, as by this command with another --output:\n   {}\n",
            quoted.join(" ")
        ))?;
        finetune(Arguments::parse_from(words), group, output, began)
    };
    let what =
        "1. A small model learns this project's documents and a part of its sources from nothing";
    let set = [
        ("full", Some("".as_ref())),
        ("model", Some(untrained.as_os_str())),
        ("output", Some(base.as_os_str())),
        ("held-out", Some("0.01".as_ref())),
        ("sample", Some("0".as_ref())),
        ("adapter", None),
        ("rslora", None),
        ("dora", None),
        ("quantize", None),
        ("report", None),
        ("trace", None),
        ("incidents", None),
        ("monitor", None),
    ];
    let first = train(what, &set, 5e-3, material::TEXT)?;
    if first.is_break() {
        return Ok(first);
    }
    let what = "2. An adapter learns to write signatures from descriptions, of the other sources";
    let set = [
        ("model", Some(base.as_os_str())),
        ("output", Some(adapter.as_os_str())),
    ];
    train(what, &set, 4e-3, material::SIGNATURES)
}

/// The command of a run on this data: each option as it is set for it, or else as it was given.
fn command(given: &ArgMatches, set: &[Setting], learning_rate: f64, data: &Path) -> Vec<OsString> {
    let usual = [
        ("context", CONTEXT.to_string()),
        ("batch", BATCH.to_string()),
        ("steps", STEPS.to_string()),
        ("learning-rate", learning_rate.to_string()),
    ];
    let mut words = vec!["finetune".into()];
    for option in Arguments::command().get_arguments() {
        let (id, Some(name)) = (option.get_id().as_str(), option.get_long()) else {
            continue;
        };
        let values: Vec<&OsStr> = match set.iter().find(|(set, _)| *set == name) {
            Some((_, value)) => value.iter().copied().collect(),
            None if given.value_source(id) == Some(ValueSource::CommandLine) => {
                given.get_raw(id).into_iter().flatten().collect()
            }
            None => {
                let usual = usual.iter().filter(|(usual, _)| *usual == name);
                usual.map(|(_, value)| value.as_ref()).collect()
            }
        };
        for value in values {
            let mut word = OsString::from(format!("--{name}"));
            if option.get_action().takes_values() {
                word.push("=");
                word.push(value);
            }
            words.push(word);
        }
    }
    words.push(data.into());
    words
}

/// A word as a shell takes it.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:,=+@%".contains(c);
    match word.chars().all(is_plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
