//! Saved and loaded, wherever the moments are.

use candle_core::{DType, Device};
use candle_headroom::optim::{Algorithm, Fused, HostUpdate, ParamsAdamW, ParamsLion};

use super::super::{Job, bits, device, scale};
use super::build;

/// Saved with moments on the host, loaded with moments on the device or the CPU, and the other way around.
fn moves_over<A: Algorithm>(params: &A, dtype: DType) {
    let (_gpu, gpu) = device();
    let steps = |optimizer: &mut Fused<A>, job: &Job, steps: std::ops::Range<usize>| {
        for step in steps {
            scale(optimizer, &job.device);
            optimizer.commit(&job.gradients(step)).unwrap();
        }
    };
    let whole = Job::new(&Device::Cpu, dtype);
    let (by_device, by_cores) = (HostUpdate::Device, HostUpdate::Cores);
    steps(&mut build(&whole, params, by_device, 1.), &whole, 0..6);
    let places = [
        (&gpu, by_device, 1.),
        (&gpu, by_cores, 1.),
        (&gpu, by_cores, 0.3),
        (&Device::Cpu, by_cores, 1.),
    ];
    for (from, first, fraction) in places {
        for (to, second, other) in places {
            let job = Job::new(from, dtype);
            let mut saved = build(&job, params, first, fraction);
            steps(&mut saved, &job, 0..3);
            let dict = saved.state().unwrap();
            let next = Job::new(to, dtype);
            for (var, values) in next.vars.iter().zip(&job.vars) {
                var.set(&values.to_device(to).unwrap()).unwrap();
            }
            let mut loaded = build(&next, params, second, other);
            loaded.load_state(&dict).unwrap();
            steps(&mut loaded, &next, 3..6);
            assert_eq!(
                bits(&next.values()),
                bits(&whole.values()),
                "{params:?} {dtype:?}"
            );
        }
    }
}

#[test]
fn saved_state_does_not_depend_on_where_moments_are() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        moves_over(&ParamsAdamW::default(), dtype);
        moves_over(&ParamsLion::default(), dtype);
    }
}
