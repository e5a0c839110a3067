//! Checkpoints of a run, on request.

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Result, bail};
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, Saving as Saved, Signal, Stopped};
use candle_headroom::data::Loader;
use candle_headroom::distributed::Group;
use candle_headroom::{AdamW, AdaptiveTrainer, StepReport};

use crate::arguments::Arguments;
use crate::corpus::Batch;
use crate::display::Output;

type Trainer = AdaptiveTrainer<AdamW>;

/// Saves nothing without `--checkpoint`. Of several ranks the first one writes.
pub struct Saving {
    output: Output,
    checkpoints: Option<Checkpoints>,
    folder: PathBuf,
}

impl Saving {
    /// Opens the folder, and goes on from its latest checkpoint if asked.
    pub fn open(
        arguments: &Arguments,
        group: &Group,
        output: Output,
        trainer: &mut Trainer,
        loader: &mut Loader<Batch>,
    ) -> Result<Self> {
        let Some(folder) = arguments.checkpoint.clone() else {
            return Ok(Self {
                output,
                checkpoints: None,
                folder: PathBuf::new(),
            });
        };
        if !arguments.resume && Checkpoint::latest(&folder)?.is_some() {
            bail!(
                "{} holds checkpoints of another run: give `--resume` to go on with it, or name another folder",
                folder.display()
            );
        }
        let builder = Checkpoints::builder(&folder)
            .group(group)
            .every(arguments.every)
            .keep_last(2);
        let signals = [Signal::Interrupt, Signal::Terminate, Signal::User1];
        let mut checkpoints = builder.on_signals(signals).open()?;
        match checkpoints.resume(trainer)? {
            Some(resumed) => {
                loader.resume(trainer)?;
                output.say(resumed)?;
            }
            None if arguments.resume => output.say(format!(
                "{} holds no checkpoint: a new run",
                folder.display()
            ))?,
            None => {}
        }
        let checkpoints = Some(checkpoints);
        Ok(Self {
            output,
            checkpoints,
            folder,
        })
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
                    .say(format!("step {}: no checkpoint: {error}", report.step))?;
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

    /// A line about a run that was stopped.
    pub fn line(&self, stopped: &Stopped) -> String {
        let folder = self.folder.display();
        match stopped.saved {
            Ok(_) => format!(
                "{stopped}; go on with the same options and `--checkpoint {folder} --resume`"
            ),
            Err(_) => stopped.to_string(),
        }
    }
}
