use std::time::{Duration, Instant};

use candle_headroom::checkpoint::{Checkpoints, Saving};
use candle_headroom::{Error, Result};

use super::model::Job;
use super::support::{figure, median};

const EVERY: u64 = 20;

/// A checkpoint every 20 steps, written in the background.
pub fn measure(is_quick: bool) -> Result<()> {
    let (samples, rounds) = if is_quick { (256, 2) } else { (1024, 5) };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(Error::external)?;
    let builder = Checkpoints::builder(folder.path().join("run")).every_updates(EVERY);
    let mut checkpoints = builder.keep_last(1).open()?;
    let mut job = Job::new(samples)?;
    // The first checkpoint allocates what the others reuse.
    while job.trainer.updates() < EVERY {
        let report = job.step()?;
        if checkpoints.after(&report, &job.trainer)?.is_break() {
            return Ok(());
        }
    }
    checkpoints.flush()?;
    let mut stalls = Vec::new();
    for _ in 0..rounds {
        let mut plain = Duration::ZERO;
        for _ in 0..EVERY - 1 {
            let begun = Instant::now();
            job.step()?;
            plain += begun.elapsed();
        }
        // The first step of these is followed by a checkpoint.
        let (mut steps, mut waits, mut started) = (Duration::ZERO, Duration::ZERO, 0);
        for _ in 0..EVERY {
            let begun = Instant::now();
            let report = job.step()?;
            let stepped = Instant::now();
            let saving = checkpoints.after(&report, &job.trainer)?;
            started += usize::from(matches!(
                saving,
                std::ops::ControlFlow::Continue(Saving::Started)
            ));
            waits += stepped.elapsed();
            steps += stepped - begun;
        }
        assert_eq!(started, 1, "one checkpoint in 20 steps");
        checkpoints.flush()?;
        job.step()?; // so that the next round begins where this one did
        let step = plain / (EVERY as u32 - 1);
        let whole = step.as_secs_f64() * EVERY as f64;
        println!(
            "  {:.1} ms a step, {:.1} ms of waiting in {EVERY} steps, which took {:.2} times as long as without a checkpoint",
            step.as_secs_f64() * 1e3,
            waits.as_secs_f64() * 1e3,
            (steps + waits).as_secs_f64() / whole
        );
        stalls.push(waits.as_secs_f64() / whole * 100.);
    }
    figure("checkpoint/stall_percent", median(stalls), "%");
    Ok(())
}
