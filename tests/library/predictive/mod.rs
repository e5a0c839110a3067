//! Policies on simulated devices: how often they fail, where they settle, and whether they stay there.

mod blind;
mod changes;
mod halving;
mod kept;
mod lasting;
mod margin;
mod promised;
mod properties;
mod recompute;
mod settling;
mod surroundings;

use candle_headroom::batch::BatchPolicy;

use crate::curves::Device;
use crate::steps::{self, Step};

fn run(policy: &mut dyn BatchPolicy, device: &mut Device, steps: usize) -> Vec<Step> {
    (0..steps).map(|_| steps::step(policy, device)).collect()
}

fn failures(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.failed.len()).sum()
}

/// How often a step's largest micro-batch differed from that of the step before.
fn changes(steps: &[Step]) -> usize {
    let pairs = steps.windows(2);
    pairs
        .filter(|pair| pair[0].largest() != pair[1].largest())
        .count()
}
