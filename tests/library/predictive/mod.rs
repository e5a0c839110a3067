//! `Predictive` on devices that exist as numbers only: how often it fails, where it settles, and that it stays there.

mod blind;
mod changes;
mod halving;
mod kept;
mod lasting;
mod properties;
mod settling;
mod surroundings;
mod timing;

use candle_headroom::batch::BatchPolicy;

use crate::curves::Device;
use crate::steps::{self, Step};

fn run(policy: &mut dyn BatchPolicy, device: &mut Device, steps: usize) -> Vec<Step> {
    (0..steps).map(|_| steps::step(policy, device)).collect()
}

fn failures(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.failed.len()).sum()
}

/// How often the size of a step's largest micro-batch was another one than the step before.
fn changes(steps: &[Step]) -> usize {
    let pairs = steps.windows(2);
    pairs
        .filter(|pair| pair[0].largest() != pair[1].largest())
        .count()
}
