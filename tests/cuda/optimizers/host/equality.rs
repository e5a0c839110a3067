//! On the host as on the device, bit by bit.

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor};
use candle_headroom::AdamW;
use candle_headroom::optim::{
    Algorithm, Commit, FusedBuilder, LossScale, Moments, ParamsAdam, ParamsAdamW, ParamsLion,
    ParamsSgd,
};

use super::super::bits::{nothing, run};
use super::super::{Job, bits, device};
use super::many;
use crate::simulator::Simulator;
use crate::support::flat;

/// The steps of `bits`, in which a group is frozen and thawed, with moments on the device and on the host.
fn same_on_the_host<A: Algorithm>(
    params: &A,
    dtype: DType,
    options: impl Fn(FusedBuilder<A>) -> FusedBuilder<A>,
    spoil: impl Fn(usize, &Job, &mut GradStore),
) {
    let (gpu, device) = device();
    let (values, told) = run(&device, dtype, params, &options, &spoil);
    let simulator = Simulator::of(gpu.ordinal);
    for (fraction, is_late) in [(0.3, false), (1., true)] {
        let moved = |builder| options(builder).moments_on_host(fraction);
        let late = |is_late| simulator.map(|simulator| simulator.set_late(is_late));
        late(is_late);
        let (on_host, expected) = run(&device, dtype, params, &moved, &spoil);
        late(false);
        let case = format!("{params:?} {dtype:?} {fraction}");
        assert_eq!(told, expected, "{case}");
        assert_eq!(bits(&values), bits(&on_host), "{case}");
    }
}

fn each_option<A: Algorithm>(params: A) {
    let loss_scale = LossScale::fixed(1024.).growth(2.).backoff(0.25).interval(2);
    let spoil = |step: usize, job: &Job, gradients: &mut GradStore| {
        if step == 2 {
            let infinite = Tensor::full(f32::INFINITY, 1101, &job.device).unwrap();
            gradients.insert(&job.vars[4], infinite.to_dtype(job.dtype).unwrap());
        }
    };
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        same_on_the_host(&params, dtype, |builder| builder, nothing);
        same_on_the_host(&params, dtype, |b| b.clip_norm(0.5), nothing);
        same_on_the_host(&params, dtype, |b| b.skip_non_finite(), spoil);
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let all = |builder: FusedBuilder<A>| {
            let builder = builder.moments(DType::BF16).master_weights();
            builder.loss_scale(loss_scale).clip_value(0.3)
        };
        same_on_the_host(&params, dtype, all, spoil);
    }
}

/// Something else writes to parameters with master weights; a gradient begins at an address that nothing is aligned to; and bf16 is
/// rounded at random.
#[test]
fn what_is_written_and_what_is_not_aligned() {
    let params = ParamsAdamW {
        lr: 0.01,
        ..Default::default()
    };
    let spoil = |step: usize, job: &Job, gradients: &mut GradStore| {
        if step == 2 {
            let ones = Tensor::ones((67, 131), job.dtype, &job.device).unwrap();
            job.vars[5].set(&(ones * 3.).unwrap()).unwrap();
        }
        let long = job.wave(&[1104], step, job.dtype);
        gradients.insert(&job.vars[4], long.narrow(0, 3, 1101).unwrap());
    };
    for dtype in [DType::F16, DType::BF16] {
        same_on_the_host(&params, dtype, |b| b.master_weights(), spoil);
    }
    same_on_the_host(&params, DType::BF16, |b| b.stochastic_rounding(), spoil);
    same_on_the_host(&params, DType::F64, |b| b, spoil);
}

#[test]
fn adam_s_results_do_not_depend_on_where_moments_are() {
    each_option(ParamsAdamW {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
    each_option(ParamsAdam {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
}

#[test]
fn nor_do_lion_s_and_sgd_s() {
    each_option(ParamsLion {
        lr: 0.05,
        weight_decay: 0.1,
        ..Default::default()
    });
    each_option(ParamsSgd {
        lr: 0.05,
        momentum: 0.9,
        nesterov: true,
        ..Default::default()
    });
    // Nothing to move.
    each_option(ParamsSgd::default());
}

/// Moments of 8 bits move as they are: the same bits, saved alike.
#[test]
fn moments_of_8_bits_move_too() {
    let (_gpu, device) = device();
    let moved = |fraction: Option<f64>| {
        let (vars, gradients) = many(&device);
        let builder = AdamW::builder(vars.clone()).moments(Moments::EightBit);
        let builder = match fraction {
            Some(fraction) => builder.moments_on_host(fraction),
            None => builder,
        };
        let mut optimizer = builder.build().unwrap();
        for _ in 0..3 {
            optimizer.commit(&gradients).unwrap();
            let saved = optimizer.state().unwrap();
            optimizer.load_state(&saved).unwrap();
        }
        let values: Vec<_> = vars.iter().map(|var| flat(var)).collect();
        let second = flat(&optimizer.state().unwrap().tensors["7.exp_avg_sq"]);
        let bytes = (optimizer.state_bytes(), optimizer.host_state_bytes());
        (bits(&values), second, bytes)
    };
    let (values, second, (all, none)) = moved(None);
    assert_eq!(none, 0);
    for fraction in [0.5, 1.] {
        let (bits, same, (on_device, on_host)) = moved(Some(fraction));
        assert!(bits == values && same == second, "{fraction}");
        assert_eq!(on_device + on_host, all);
        assert!(on_host as f64 >= fraction * all as f64);
    }
}

/// Those of other rules, of bf16 parameters with either kind of rounding, with masters, and under gradients that are not contiguous.
#[test]
fn moments_of_8_bits_move_with_each_option() {
    fn check<A: Algorithm>(params: A) {
        let strided = |step: usize, job: &Job, gradients: &mut GradStore| {
            let turned = job.wave(&[131, 67], 10 * step + 6, job.dtype);
            gradients.insert(&job.vars[5], turned.t().unwrap());
        };
        let small = |b: FusedBuilder<A>| b.moments(Moments::EightBit);
        same_on_the_host(&params, DType::F32, small, strided);
        let random = |b: FusedBuilder<A>| small(b).stochastic_rounding();
        same_on_the_host(&params, DType::BF16, random, strided);
        for dtype in [DType::F16, DType::BF16] {
            let masters = |b: FusedBuilder<A>| small(b).master_weights().clip_norm(0.5);
            same_on_the_host(&params, dtype, masters, strided);
        }
    }
    let lr = 0.05;
    check(ParamsAdamW {
        lr,
        ..Default::default()
    });
    check(ParamsLion {
        lr,
        ..Default::default()
    });
}
