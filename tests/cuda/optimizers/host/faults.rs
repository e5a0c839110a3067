//! A lost device, and kernels that run late.

use candle_core::{DType, Device};
use candle_headroom::optim::{Commit, ParamsAdamW};

use super::super::{Job, bits, scale};
use super::build;
use crate::gpu::simulated;
use crate::simulator::Simulator;
use crate::support::flat;

/// A device that is lost at any launch: a typed error, and host memory is given back all the same.
#[test]
fn a_lost_device_keeps_no_host_memory() {
    let Some((gpu, simulator)) = simulated(1) else {
        return;
    };
    let begin = simulator.counters();
    // An update has three launches.
    for (nth, at_once) in (1..=3).flat_map(|nth| [true, false].map(|at_once| (nth, at_once))) {
        let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
        let job = Job::new(&device, DType::F32);
        let builder = job.builder(&ParamsAdamW::default()).clip_norm(1.);
        let mut optimizer = builder.moments_on_host(1.).build().unwrap();
        optimizer.commit(&job.gradients(0)).unwrap();
        let gradients = job.gradients(1);
        simulator.fault_at_launch(nth, 700, at_once);
        let told = optimizer.commit(&gradients).map(drop);
        let error = told
            .and_then(|()| optimizer.progress().map(drop))
            .unwrap_err();
        assert_eq!(
            error.device_fault().map(|fault| fault.code),
            Some(700),
            "{error}"
        );
        drop(optimizer);
        assert_eq!(simulator.counters().live_host_bytes, begin.live_host_bytes);
        simulator.clear_fault();
        simulator.disarm();
    }
}

/// With kernels that run as late as they may: saving waits for the update, dropping does not take the memory from under it, and a step waits
/// for nothing.
#[test]
fn late_kernels_find_their_moments() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    late_steps(simulator, &device);
}

fn late_steps(simulator: Simulator, device: &Device) {
    let params = ParamsAdamW::default();
    let calm = Job::new(device, DType::F32);
    let mut plain = build(&calm, &params, 1.);
    let job = Job::new(device, DType::F32);
    let mut optimizer = build(&job, &params, 1.);
    for step in 0..3 {
        let (expected, gradients) = (calm.gradients(step), job.gradients(step));
        scale(&plain, device);
        scale(&optimizer, device);
        plain.commit(&expected).unwrap();
        simulator.set_late(true);
        optimizer.commit(&gradients).unwrap();
        let saved = optimizer.state().unwrap();
        simulator.set_late(false);
        let plain = plain.state().unwrap();
        for (name, tensor) in &plain.tensors {
            assert_eq!(flat(tensor), flat(&saved.tensors[name]), "{name}");
        }
    }
    let (expected, gradients) = (calm.gradients(3), job.gradients(3));
    scale(&plain, device);
    scale(&optimizer, device);
    plain.commit(&expected).unwrap();
    simulator.set_late(true);
    simulator.reset_counters();
    optimizer.commit(&gradients).unwrap();
    assert_eq!(simulator.counters().synchronizations, 0);
    drop(optimizer);
    simulator.set_late(false);
    assert_eq!(simulator.counters().lost_context, 0);
    assert_eq!(bits(&job.values()), bits(&calm.values()));
}
