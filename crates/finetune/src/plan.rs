//! Whether a training fits onto a card: the program starts itself again as a dry run, on zeros in the place of weights.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use candle_headroom::distributed::Group;

use crate::arguments::Arguments;
use crate::source;

/// Prints the answer for this card, and returns the status that says it: 0 if it fits, 1 if not.
pub fn run(arguments: &Arguments, card: &str, group: &Group) -> Result<u8> {
    ensure!(
        cfg!(feature = "cuda"),
        "--plan runs the program as it is built for a GPU: build it with `--features cuda`, which needs none (`headroom cuda-env`); or ask `headroom estimate` for a formula"
    );
    // The network is asked before the dry run's time begins, for anything but weights.
    source::find(&arguments.model, false, group)?;
    let folder = tempfile::tempdir().context("cannot make a folder")?;
    let own = env::current_exe().context("cannot find this program")?;
    let mut run = Command::new("headroom");
    run.args(["dry-run", "--gpu", card, "--"]).arg(own);
    // Behind `--` all are files.
    let given: Vec<_> = env::args_os().skip(1).collect();
    let end = given.iter().position(|argument| argument == "--");
    let (options, files) = given.split_at(end.unwrap_or(given.len()));
    run.args(options);
    run.args(["--planned", "--device=cuda:0", "--steps=3", "--sample=0"]);
    run.arg("--output").arg(folder.path()).args(files);
    let ended = run.status().context(
        "--plan starts the program `headroom`, which must be in PATH: `cargo install --path crates/cli --features dry-run`",
    )?;
    match ended.code() {
        Some(status) => Ok(status as u8),
        None => bail!("the dry run ended by {ended}"),
    }
}
