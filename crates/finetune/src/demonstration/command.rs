//! The options that were given, and the command of a run.

use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory};

use crate::arguments::Arguments;

/// The command line of this process.
pub struct Given {
    program: Command,
    matches: ArgMatches,
}

impl Given {
    pub fn read() -> Self {
        let program = Arguments::command();
        let matches = program.clone().get_matches();
        Self { program, matches }
    }

    /// Whether an option stands on the command line, also with its default.
    pub fn has(&self, name: &str) -> bool {
        self.matches.value_source(name) == Some(ValueSource::CommandLine)
    }

    /// The command of a run: options that are set for it, those given but for the ones `without`, and its data.
    pub fn command(&self, set: &[(&str, String)], without: &[&str], data: &Path) -> String {
        let mut words = vec!["finetune".to_owned()];
        for (name, value) in set {
            words.push(format!("--{name} {}", quoted(value)).trim_end().to_owned());
        }
        for option in self.program.get_arguments() {
            let (id, Some(name)) = (option.get_id().as_str(), option.get_long()) else {
                continue;
            };
            let is_set = set.iter().any(|(set, _)| *set == name);
            if is_set || without.contains(&name) || !self.has(id) {
                continue;
            }
            let values = self.matches.get_raw(id).into_iter().flatten();
            let values = values.map(|value| quoted(&value.to_string_lossy()));
            match (
                option.get_action().takes_values(),
                option.get_value_delimiter(),
            ) {
                (false, _) => words.push(format!("--{name}")),
                (true, None) => words.extend(values.map(|value| format!("--{name} {value}"))),
                (true, Some(_)) => {
                    words.push(format!("--{name} {}", values.collect::<Vec<_>>().join(",")))
                }
            }
        }
        words.push(quoted(&data.to_string_lossy()));
        words.join(" ")
    }
}

/// A value as a shell takes it.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:,=+@%".contains(c);
    match value.chars().all(is_plain) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', r"'\''")),
    }
}
