//! Checkpoints of a run, on request.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Result, bail};
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, Saving as Saved, Signal, Stopped};
use candle_headroom::data::{Loader, Tensors};
use candle_headroom::distributed::Group;
use candle_headroom::{AdamW, AdaptiveTrainer, StepReport};

use super::display::Output;
use super::options::SaveOptions;

type Trainer = AdaptiveTrainer<AdamW>;

/// The key under which a checkpoint holds the run's options.
const OPTIONS: &str = "options";

/// Saves nothing without `--checkpoint`. Of several ranks the first one writes.
pub struct Saving {
    output: Output,
    checkpoints: Option<Checkpoints>,
    folder: PathBuf,
}

impl Saving {
    /// Opens the folder, and goes on from its latest checkpoint if asked. Returns the loader at its next batch. `run` describes the options that a resumed run must have again,
    /// each in a line.
    pub fn open<B: Tensors + Send + 'static>(
        options: &SaveOptions,
        run: &[String],
        group: &Group,
        output: Output,
        trainer: &mut Trainer,
        loader: Loader<B>,
    ) -> Result<(Self, Loader<B>)> {
        let Some(folder) = options.checkpoint.clone() else {
            let saving = Self {
                output,
                checkpoints: None,
                folder: PathBuf::new(),
            };
            return Ok((saving, loader));
        };
        match Checkpoint::latest(&folder)? {
            Some(latest) if options.resume => compare(run, &latest)?,
            Some(_) => bail!(
                "{} holds checkpoints of another run: give `--resume` to go on with it, or name another folder",
                folder.display()
            ),
            None => {}
        }
        let builder = Checkpoints::builder(&folder)
            .group(group)
            .every_updates(options.every)
            .keep_last(2);
        let signals = [Signal::Interrupt, Signal::Terminate, Signal::User1];
        let mut checkpoints = builder.on_signals(signals).open()?;
        let loader = checkpoints.resume(trainer, loader)?;
        match checkpoints.resumed() {
            Some(resumed) => output.say(resumed)?,
            None if options.resume => output.say(format!(
                "{} holds no checkpoint: a new run",
                folder.display()
            ))?,
            None => {}
        }
        checkpoints.set(OPTIONS, run)?;
        let checkpoints = Some(checkpoints);
        let saving = Self {
            output,
            checkpoints,
            folder,
        };
        Ok((saving, loader))
    }

    /// Saves if it is due. Returns why the run has to stop, if it has to.
    pub fn after(&mut self, report: &StepReport, trainer: &Trainer) -> Result<Option<Stopped>> {
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(None);
        };
        Ok(match checkpoints.after(report, trainer)? {
            ControlFlow::Break(stopped) => Some(stopped),
            ControlFlow::Continue(Saved::Failed(error)) => {
                self.output
                    .warn(format!("step {}: no checkpoint: {error}", report.step))?;
                None
            }
            ControlFlow::Continue(_) => None,
        })
    }

    /// Saves the last updates.
    pub fn finish(&mut self, trainer: &Trainer) -> Result<()> {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.save_now(trainer)?;
        }
        Ok(())
    }

    /// The folder of the checkpoints, if any are saved.
    pub fn files(&self) -> Vec<(&'static str, PathBuf)> {
        let saved = self.checkpoints.iter();
        let named = saved.map(|_| ("checkpoint", self.folder.clone()));
        named.collect()
    }

    /// How a run goes on that was stopped.
    pub fn next(&self, stopped: &Stopped) -> String {
        let folder = self.folder.display();
        let from = match stopped.saved {
            Ok(_) => "",
            Err(_) => " from the checkpoint before",
        };
        format!("go on{from} with the same options and `--checkpoint {folder} --resume`")
    }
}

/// Refuses to go on with other options than the run had.
fn compare(run: &[String], latest: &Checkpoint) -> Result<()> {
    let saved: Vec<String> = latest.get(OPTIONS)?.unwrap_or_default();
    let other = saved.iter().zip(run).find(|(saved, own)| saved != own);
    if let Some((saved, own)) = other {
        bail!(
            "the run in {} has {saved}, not {own}: resume it with the same options and files, or name another folder",
            latest.path().parent().unwrap_or(latest.path()).display()
        );
    }
    Ok(())
}
