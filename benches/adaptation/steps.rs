//! One step on a simulated device, reported to a policy as a trainer does.

use candle_headroom::ResourceExhausted;
use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed};
use candle_headroom::error::{Cause, MemoryReading, Resource};

use crate::curves::Device;

/// The sizes that succeeded and those that failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    pub sizes: Vec<usize>,
    pub failed: Vec<usize>,
}

impl Step {
    pub fn largest(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }
}

/// One step of the device's batch.
pub fn step(policy: &mut dyn BatchPolicy, device: &mut Device) -> Step {
    let total = device.curve.batch;
    // Whole numbers of tokens, a hundred for a sample of the first length.
    let cost = (total as f64 * 100. * device.length()) as usize;
    policy.begin(&Extent::new(total, cost));
    let (mut step, mut done) = (Step::default(), 0);
    while done < total {
        let mut now = MemoryReading::default();
        if !device.curve.is_blind {
            now.in_use = Some(device.in_use as u64);
            now.limit = Some(device.limit() as u64);
            policy.prepare(&now);
        }
        let size = policy.size(total - done);
        assert!((1..=total - done).contains(&size), "{size}");
        let Some(peak) = device.run(size) else {
            let cause = match device.curve.is_blind {
                true => Cause::Unknown,
                false => Cause::Limit,
            };
            let mut exhausted = ResourceExhausted::new(Resource::DeviceMemory, cause);
            exhausted.bytes = now;
            policy.failed(&Failed::new(size, &exhausted));
            assert!(policy.size(total - done) < size, "one sample always fits");
            step.failed.push(size);
            continue;
        };
        let mut completed = Completed::new(size);
        if !device.curve.is_blind {
            (completed.before, completed.limit) = (now.in_use, now.limit);
            completed.peak = Some(peak);
        }
        policy.succeeded(&completed);
        step.sizes.push(size);
        done += size;
    }
    device.step += 1;
    step
}
