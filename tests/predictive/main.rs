//! `Predictive` on devices that exist as numbers only: how often it fails, where it settles, and that it stays there.

mod blind;
mod changes;
#[path = "../../benches/adaptation/curves.rs"]
mod curves;
mod halving;
mod kept;
mod lasting;
mod properties;
mod settling;
#[path = "../../benches/adaptation/steps.rs"]
mod steps;
mod surroundings;
mod timing;

use candle_headroom::BatchPolicy;

use curves::Device;
use steps::Step;

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
