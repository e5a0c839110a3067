//! Groups of options.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

// No documentation of these structs: clap would show it instead of the program's.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Watching")]
pub struct WatchOptions {
    /// Writes a page for a browser at the end: memory, micro-batches, throughput and events. With `--ranks`, it shows all
    /// ranks, and their trace is written beside it: `run.html` and `run.json`.
    #[arg(long, value_name = "HTML")]
    pub report: Option<PathBuf>,
    /// Writes a trace for <https://ui.perfetto.dev> at the end. With `--ranks`, it has all ranks, and their page is written beside it.
    #[arg(long, value_name = "JSON")]
    pub trace: Option<PathBuf>,
    /// Appends each incident to this file as it happens, one line each. With `--ranks`, those of rank 0.
    #[arg(long, value_name = "JSONL")]
    pub incidents: Option<PathBuf>,
    /// Samples the GPUs and the host, with `--ranks` those of rank 0. Their curves appear on the page and in the trace, the latest samples in each incident.
    #[arg(long)]
    pub monitor: bool,
}

#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Printing")]
pub struct PrintOptions {
    /// Prints nothing but errors, on standard error. Files are written as usual.
    #[arg(long, conflicts_with = "json")]
    pub quiet: bool,
    /// Prints one JSON object a line and no other text: one for each step, and a last one with the totals and the files. With
    /// `--ranks`, the numbers are those of rank 0.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Checkpoints")]
pub struct SaveOptions {
    /// Saves checkpoints of the run in this folder, and one more on Ctrl-C, SIGTERM or SIGUSR1.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Number of updates from one checkpoint to the next.
    #[arg(
        long,
        value_name = "STEPS",
        default_value_t = 10,
        requires = "checkpoint"
    )]
    pub every: u64,
    /// Goes on from the latest checkpoint in the folder, if there is one.
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
}

impl WatchOptions {
    /// Refuses files that cannot be written, before anything is allocated.
    pub fn check(&self) -> Result<()> {
        let files = [&self.report, &self.trace, &self.incidents];
        files
            .into_iter()
            .flatten()
            .try_for_each(|path| check_output(path))
    }
}

/// Refuses an existing path that is a folder, a device, or a file that cannot be written.
fn check_output(path: &Path) -> Result<()> {
    let Ok(metadata) = path.metadata() else {
        return Ok(()); // a new file: whoever creates it reports a wrong folder
    };
    if !metadata.is_file() {
        bail!(
            "{} is not a regular file: name a file to write",
            path.display()
        );
    }
    let opened = OpenOptions::new().append(true).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}
