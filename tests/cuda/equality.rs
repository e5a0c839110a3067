//! Promise 3 on CUDA: the device computes what the CPU computes.

use candle_core::Device;
use candle_headroom::DeviceMemory;
use candle_headroom::batch::Fixed;

use crate::gpu::gpu;
use crate::jobs::Job;
use crate::support::distance;

/// Rounding of f32 sums in another order.
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
