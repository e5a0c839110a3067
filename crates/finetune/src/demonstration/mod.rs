//! The program with nothing given: it makes a model of this project's text, and fine-tunes it for a task.

mod source_text;
mod tiny_model;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use candle_headroom::distributed::Group;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, Parser};
use serde_json::json;

use crate::arguments::Arguments;
use crate::finetuning::finetune;
use crate::support::display::Output;
use crate::training::Trained;

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
    let train = |what: &str, words: Vec<OsString>| {
        let command: Vec<_> = words.iter().map(|word| quoted(word)).collect();
        let command = command.join(" ");
        output.say(format!(
            "{what}, as by this command with another --output:\n   {command}\n"
        ))?;
        finetune(Arguments::parse_from(words), group, output, began)
    };
    let common = |model: &Path, output: &Path, learning_rate: f64| -> [Setting; 6] {
        let set = [
            ("model", model.into()),
            ("output", output.into()),
            ("context", given.or("context", CONTEXT)),
            ("batch", given.or("batch", BATCH)),
            ("learning-rate", given.or("learning-rate", learning_rate)),
            ("steps", given.or("steps", STEPS)),
        ];
        set.map(|(name, value)| (name, Some(value)))
    };
    let mut set = vec![("full", None)];
    set.extend(common(&untrained, &base, 5e-3));
    set.extend(
        [("held-out", "0.01"), ("sample", "0")].map(|(name, value)| (name, Some(value.into()))),
    );
    let without = ["adapter", "report", "trace", "incidents", "monitor"];
    let what =
        "1. A small model learns this project's documents and a part of its sources from nothing";
    let first = train(what, given.command(&set, &without, &folder.join(TEXT)))?;
    if matches!(first, Trained::Stopped(_)) {
        return Ok(first);
    }
    let mut set = common(&base, &adapter, 4e-3).to_vec();
    set.extend(["held-out", "sample"].map(|name| (name, Some(given.value(name)))));
    let what = "2. An adapter learns to write signatures from descriptions, of the other sources";
    train(what, given.command(&set, &[], &folder.join(SIGNATURES)))
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
    let of_first = all.first().map(|path| String::from_utf8_lossy(path));
    Ok(of_first.map_or(own, |path| PathBuf::from(&*path)))
}

fn write(folder: &Path, untrained: &Path, seed: u64) -> Result<()> {
    std::fs::create_dir_all(untrained)?;
    let text = source_text::text()?;
    std::fs::write(folder.join(TEXT), &text)?;
    let pairs = source_text::signatures()?.into_iter();
    let lines = pairs.map(|(prompt, completion)| {
        let pair = json!({ "prompt": prompt, "completion": completion });
        format!("{pair}\n")
    });
    std::fs::write(folder.join(SIGNATURES), lines.collect::<String>())?;
    tiny_model::write(untrained, &text, CONTEXT, seed)
}

/// An option that is set, and its value unless it is a flag.
type Setting = (&'static str, Option<OsString>);

/// The command line of this process.
struct Given {
    program: Command,
    matches: ArgMatches,
}

impl Given {
    fn read() -> Self {
        let program = Arguments::command();
        let matches = program.clone().get_matches();
        Self { program, matches }
    }

    /// Whether an option stands on the command line, also with its default.
    fn has(&self, name: &str) -> bool {
        let source = self.matches.value_source(&name.replace('-', "_"));
        source == Some(ValueSource::CommandLine)
    }

    /// The value of an option, as it was given or by default; several are joined by commas.
    fn value(&self, name: &str) -> OsString {
        let values = self.matches.get_raw(&name.replace('-', "_"));
        let values: Vec<_> = values.into_iter().flatten().collect();
        values.join(OsStr::new(","))
    }

    /// The value that was given, or else this one.
    fn or(&self, name: &str, value: impl ToString) -> OsString {
        match self.has(name) {
            true => self.value(name),
            false => value.to_string().into(),
        }
    }

    /// The command of a run: options that are set for it, those given but for the ones `without`, and its data.
    fn command(&self, set: &[Setting], without: &[&str], data: &Path) -> Vec<OsString> {
        let mut words = vec!["finetune".into()];
        for (name, value) in set {
            add(&mut words, name, value.as_deref());
        }
        for option in self.program.get_arguments() {
            let (id, Some(name)) = (option.get_id().as_str(), option.get_long()) else {
                continue;
            };
            let is_set = set.iter().any(|(set, _)| *set == name);
            if is_set || without.contains(&name) || !self.has(name) {
                continue;
            }
            let is_repeated = option.get_value_delimiter().is_none();
            match option.get_action().takes_values() {
                false => add(&mut words, name, None),
                true if is_repeated => {
                    let values = self.matches.get_raw(id).into_iter().flatten();
                    values.for_each(|value| add(&mut words, name, Some(value)));
                }
                true => add(&mut words, name, Some(&self.value(name))),
            }
        }
        words.push(data.into());
        words
    }
}

fn add(words: &mut Vec<OsString>, name: &str, value: Option<&OsStr>) {
    let mut option = OsString::from(format!("--{name}"));
    match value {
        // Or it would be taken for another option.
        Some(value) if value.as_encoded_bytes().starts_with(b"-") => {
            option.push("=");
            option.push(value);
            words.push(option);
        }
        _ => {
            words.push(option);
            words.extend(value.map(OsStr::to_owned));
        }
    }
}

/// A word as a shell takes it.
fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:,=+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.into_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
