//! The device computes what the CPU computes, and no more than it has to.

use candle_core::Device;
use candle_headroom::{DeviceMemory, Fixed};

use crate::gpu::{gpu, simulated};
use crate::jobs::Job;
use crate::support::distance;

/// f32, summed in another order.
const TOLERANCE: f64 = 1e-5;

#[test]
fn three_steps_end_where_the_cpu_s_end() {
    let gpu = gpu();
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    for (here, there) in Job::all(memory.device()).iter().zip(Job::all(&Device::Cpu)) {
        let size = || Fixed::new(3).unwrap();
        let mut on_device = here.trainer_with(here.descent(), Some(&memory), size());
        let mut on_host = there.trainer_with(there.descent(), None, size());
        for step in 0..3 {
            let device = here.step(&mut on_device).unwrap();
            let host = there.step(&mut on_host).unwrap();
            assert_eq!(device.sizes, [3, 3, 2]);
            let losses = (device.loss.read().unwrap(), host.loss.read().unwrap());
            assert!(
                (losses.0 - losses.1).abs() < TOLERANCE,
                "{} {step}: {losses:?}",
                here.name
            );
        }
        let distance = distance(&here.state(), &there.state());
        assert!(distance < TOLERANCE, "{}: {distance}", here.name);
        assert!(distance > 0., "compared with itself");
    }
}

/// The host runs ahead of the device through a whole step: nothing waits until the loss is read.
#[test]
fn a_step_never_waits_for_the_device() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let memory = DeviceMemory::cuda(gpu.ordinal).open().unwrap();
    for job in Job::all(memory.device()) {
        let mut trainer = job.trainer(Some(&memory), Fixed::new(2).unwrap());
        job.step(&mut trainer).unwrap();
        simulator.reset_counters();
        let report = job.step(&mut trainer).unwrap();
        assert_eq!(report.sizes.len(), 4);
        assert_eq!(simulator.counters().synchronizations, 0, "{}", job.name);
        assert!(simulator.counters().launches > 100);
    }
}
