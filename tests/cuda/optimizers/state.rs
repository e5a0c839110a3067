//! State that comes from the device and goes back to it.

use candle_core::{DType, Device};
use candle_headroom::optim::{
    Algorithm, Commit, Fused, LossScale, Moments, ParamsAdamW, ParamsLion, ParamsSgd, StateDict,
};

use super::{Job, bits, device, scale};
use crate::gpu::simulated;

fn build<A: Algorithm>(job: &Job, params: &A) -> Fused<A> {
    let builder = job.builder(params);
    let scale = LossScale::dynamic().interval(2);
    let builder = builder.clip_norm(1.).loss_scale(scale);
    let builder = builder.master_weights();
    builder.moments(Moments::EightBit).build().unwrap()
}

/// Half of the steps on one device, and the other half on the other, with what was saved in between.
fn moves_over<A: Algorithm>(params: A, dtype: DType, tolerance: f64) {
    let (_gpu, gpu) = device();
    for (from, to) in [(&gpu, &Device::Cpu), (&Device::Cpu, &gpu), (&gpu, &gpu)] {
        let whole = Job::new(&Device::Cpu, dtype);
        let mut optimizer = build(&whole, &params);
        for step in 0..6 {
            scale(&optimizer, &whole.device);
            optimizer.commit(&whole.gradients(step)).unwrap();
        }

        let first = Job::new(from, dtype);
        let mut saved = build(&first, &params);
        for step in 0..3 {
            scale(&saved, &first.device);
            saved.commit(&first.gradients(step)).unwrap();
        }
        let dict = saved.state().unwrap();
        assert!(dict.tensors.values().all(|tensor| tensor.device().is_cpu()));

        let second = Job::new(to, dtype);
        for (var, values) in second.vars.iter().zip(&first.vars) {
            var.set(&values.to_device(to).unwrap()).unwrap();
        }
        let mut loaded = build(&second, &params);
        loaded.load_state(&dict).unwrap();
        for step in 3..6 {
            scale(&loaded, &second.device);
            loaded.commit(&second.gradients(step)).unwrap();
        }
        assert_eq!(loaded.progress().unwrap(), optimizer.progress().unwrap());
        let (found, expected) = (second.values(), whole.values());
        for (a, b) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!(
                (a - b).abs() <= tolerance * b.abs().max(1.),
                "{params:?} {dtype:?}: {a} {b}"
            );
        }
    }
}

#[test]
fn a_run_goes_on_on_another_device() {
    for dtype in [DType::F32, DType::BF16] {
        moves_over(ParamsAdamW::default(), dtype, 0.);
        moves_over(ParamsLion::default(), dtype, 0.);
        let params = ParamsSgd {
            momentum: 0.9,
            ..Default::default()
        };
        moves_over(params, dtype, 0.);
    }
}

/// An error at any allocation or copy of loading leaves the old state; and state does not lie on the device three times.
#[test]
fn a_load_that_fails_changes_nothing() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let start = || {
        let job = Job::new(&device, DType::F32);
        let mut optimizer = build(&job, &ParamsAdamW::default());
        scale(&optimizer, &device);
        optimizer.commit(&job.gradients(0)).unwrap();
        (job, optimizer)
    };
    let (calm_job, mut calm) = start();
    let (job, mut optimizer) = start();
    let dict = {
        let (job, mut other) = start();
        scale(&other, &device);
        other.commit(&job.gradients(1)).unwrap();
        other.state().unwrap()
    };
    let mut failures = 0;
    let orders: [&dyn Fn(u64); 2] = [&|nth| simulator.fail_allocation(nth, 1), &|nth| {
        simulator.fail_work(nth, 1, 2)
    }];
    for order in orders {
        for nth in 1.. {
            let live = simulator.counters().live_bytes;
            order(nth);
            let outcome = optimizer.load_state(&dict);
            simulator.disarm();
            let Err(error) = outcome else {
                // It has been loaded: back to where the other is.
                optimizer.load_state(&calm.state().unwrap()).unwrap();
                break;
            };
            assert!(error.resource_exhausted().is_some(), "{error}");
            assert_eq!(simulator.counters().live_bytes, live);
            assert!(same(&optimizer.state().unwrap(), &calm.state().unwrap()));
            failures += 1;
        }
    }
    assert!(failures > 20, "{failures}");
    for step in 2..4 {
        scale(&calm, &device);
        scale(&optimizer, &device);
        calm.commit(&calm_job.gradients(step)).unwrap();
        optimizer.commit(&job.gradients(step)).unwrap();
        assert_eq!(bits(&job.values()), bits(&calm_job.values()));
    }

    simulator.reset_counters();
    let live = simulator.counters().live_bytes;
    optimizer.load_state(&dict).unwrap();
    let state: usize = dict
        .tensors
        .values()
        .map(|tensor| tensor.elem_count() * 4)
        .sum();
    let beside = simulator.counters().peak_live_bytes - live;
    // Rounded up to what an allocation takes at least.
    let rounding = 512 * simulator.counters().allocations;
    assert!(beside <= state as u64 + rounding, "{beside} {state}");
}

/// An error at any allocation or copy of a thaw leaves everything as it was.
#[test]
fn a_thaw_that_fails_changes_nothing() {
    let Some((gpu, simulator)) = simulated(0) else {
        return;
    };
    let device = Device::new_cuda_with_stream(gpu.ordinal).unwrap();
    let job = Job::new(&device, DType::BF16);
    let mut optimizer = build(&job, &ParamsAdamW::default());
    let all = optimizer.state_bytes();
    let [thawed, frozen] = [false, true].map(|f| optimizer.groups()[1].frozen(f));
    optimizer.set_group(1, frozen).unwrap();
    let part = optimizer.state_bytes();
    assert!(part < all);
    let mut failures = 0;
    let orders: [&dyn Fn(u64); 2] = [&|nth| simulator.fail_allocation(nth, 1), &|nth| {
        simulator.fail_work(nth, 1, 2)
    }];
    for order in orders {
        for nth in 1.. {
            let live = simulator.counters().live_bytes;
            order(nth);
            let outcome = optimizer.set_group(1, thawed);
            simulator.disarm();
            let Err(error) = outcome else {
                assert_eq!(optimizer.state_bytes(), all);
                assert!(simulator.counters().live_bytes > live);
                optimizer.set_group(1, frozen).unwrap();
                break;
            };
            assert!(error.resource_exhausted().is_some(), "{error}");
            assert_eq!(simulator.counters().live_bytes, live);
            assert_eq!(optimizer.state_bytes(), part);
            assert_eq!(optimizer.groups()[1], frozen);
            failures += 1;
        }
    }
    assert!(failures > 20, "{failures}");
}

fn same(one: &StateDict, other: &StateDict) -> bool {
    let values = |dict: &StateDict| -> Vec<_> {
        let tensors = dict.tensors.iter();
        let mut values: Vec<_> = tensors
            .map(|(name, tensor)| (name.clone(), crate::support::flat(tensor)))
            .collect();
        values.sort_by(|a, b| a.0.cmp(&b.0));
        values
    };
    values(one) == values(other)
}
