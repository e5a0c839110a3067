//! This crate's policies on a device that exists as numbers only, told what a trainer tells them.

use candle_headroom::{
    BatchPolicy, Cause, Completed, Extent, Failed, MemoryReading, Resource, ResourceExhausted,
};

use crate::curves::Device;
use crate::tally::{Step, Tally};

/// Runs so many steps of the device's batch.
pub fn run(policy: &mut dyn BatchPolicy, mut device: Device, steps: usize) -> Tally {
    let mut tally = Tally::default();
    for _ in 0..steps {
        let step = one_step(policy, &mut device);
        tally.push(step, &device);
        device.step += 1;
    }
    tally
}

fn one_step(policy: &mut dyn BatchPolicy, device: &mut Device) -> Step {
    let total = device.curve.batch;
    // Whole numbers of tokens, a hundred for a sample of the first length.
    let cost = (total as f64 * 100. * device.length()) as usize;
    policy.begin(&Extent::new(total, cost));
    let (mut step, mut done) = (Step::default(), 0);
    while done < total {
        let mut now = MemoryReading::default();
        now.in_use = Some(device.in_use as u64);
        now.limit = Some(device.limit() as u64);
        policy.prepare(&now);
        let size = policy.size(total - done);
        step.computed += size;
        let Some(peak) = device.run(size) else {
            let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, Cause::Limit);
            exhausted.bytes = now;
            policy.failed(&Failed::new(size, &exhausted));
            step.failures += 1;
            continue;
        };
        let mut completed = Completed::new(size);
        (completed.before, completed.limit) = (now.in_use, now.limit);
        completed.peak = Some(peak);
        completed.forward_peak = now.in_use.map(|bytes| bytes + device.forward(size));
        policy.succeeded(&completed);
        step.largest = step.largest.max(size);
        done += size;
    }
    step.finished = total;
    step
}
