//! Saved and loaded, wherever the moments are.

use candle_core::{DType, Device};
use candle_headroom::optim::{Algorithm, Commit, Fused, ParamsAdamW, ParamsLion};

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
    steps(&mut build(&whole, params, 1.), &whole, 0..6);
    let places = [(&gpu, 1.), (&gpu, 0.3), (&Device::Cpu, 1.)];
    for (from, fraction) in places {
        for (to, other) in places {
            let job = Job::new(from, dtype);
            let mut saved = build(&job, params, fraction);
            steps(&mut saved, &job, 0..3);
            let dict = saved.state().unwrap();
            let next = Job::new(to, dtype);
            for (var, values) in next.vars.iter().zip(&job.vars) {
                var.set(&values.to_device(to).unwrap()).unwrap();
            }
            let mut loaded = build(&next, params, other);
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
