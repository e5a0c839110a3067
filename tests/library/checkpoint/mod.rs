//! Checkpoints: what is saved comes back, and nothing else is ever taken for it.

mod background;
mod damage;
mod differences;
mod failures;
mod hostile;
mod keeping;
mod links;
mod loaders;
mod models;
mod round_trips;
mod trainers;

#[path = "../../support/run.rs"]
mod run;

use std::path::{Path, PathBuf};

use candle_headroom::checkpoint::Checkpoints;
use run::{Run, latest};
use tempfile::TempDir;

/// A folder for a run, and what removes it.
fn folder() -> (TempDir, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("run");
    (temporary, path)
}

/// Trains for so many updates and saves every `every`, while training waits.
fn train(folder: &Path, updates: u64, every: u64) -> Run {
    let builder = Checkpoints::builder(folder)
        .every_updates(every)
        .in_foreground();
    let mut checkpoints = builder.open().unwrap();
    let mut run = Run::new();
    checkpoints.resume_trainer(&mut run.trainer).unwrap();
    run.until(updates, &mut checkpoints, |_, _| {}).unwrap();
    checkpoints.finish().unwrap();
    run
}

/// The names in a folder, sorted, without the lock.
fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != ".lock").collect();
    names.sort();
    names
}
