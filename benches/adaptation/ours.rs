//! This crate's policies on a simulated device.

use candle_headroom::batch::BatchPolicy;

use crate::curves::Device;
use crate::steps;
use crate::tally::{Step, Tally};

/// Runs `steps` batches.
pub fn run(policy: &mut dyn BatchPolicy, mut device: Device, steps: usize) -> Tally {
    let mut tally = Tally::default();
    for _ in 0..steps {
        let before = device.clone();
        let step = steps::step(policy, &mut device);
        let finished = step.sizes.iter().sum();
        let again: usize = step.failed.iter().sum();
        let largest = step.largest();
        let failures = step.failed.len();
        let computed = finished + again;
        let step = Step {
            computed,
            finished,
            failures,
            largest,
        };
        tally.push(step, &before);
    }
    tally
}
