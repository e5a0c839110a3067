//! Promise 3, equality: accumulated gradients equal the whole batch's, for all kinds of weights and splits. On CUDA:
//! tests/cuda/equality.rs.

use std::cell::RefCell;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::error::Phase;
use candle_headroom::optim::ParamsAdamW;
use candle_headroom::testing::Faults;
use candle_headroom::{AdaptiveTrainer, GradientAccumulator, Loss};
use candle_nn::{AdamW, Optimizer};
use proptest::prelude::*;

use crate::support::{
    self, Halves, Mlp, accumulate_means, accumulating, adamw, batches, by_sgd, distance, flat,
    foreign, read, sgd, snapshot, wave,
};

fn whole(vars: &[Var], loss: &Tensor) -> Vec<Vec<f64>> {
    let store = loss.backward().unwrap();
    vars.iter()
        .map(|var| flat(store.get(var).unwrap()))
        .collect()
}

/// Tolerance relative to the largest gradient: the rounding of a few sums, which is 2^29 times coarser in f32 than in f64.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 1e-6,
        _ => 2e-2, // a gradient in bf16 or f16 has 8 or 11 bits
    }
}

#[test]
fn means_over_uneven_runs_give_the_whole_batchs_gradient() {
    for dtype in [DType::F32, DType::F64] {
        let model = Mlp::new(dtype);
        for sizes in [&[13][..], &[5, 5, 3], &[1; 13], &[12, 1], &[1, 12]] {
            let (x, y) = Mlp::data(13, dtype);
            let expected = whole(&model.vars, &model.loss(&x, &y).unwrap());
            let accumulator = accumulate_means(&model, sizes, dtype);
            let error = distance(&read(&model.vars, &accumulator), &expected);
            assert!(error <= tolerance(dtype), "{dtype:?} {sizes:?}: {error:e}");
        }
    }
}

#[test]
fn a_single_run_is_the_plain_gradient_to_the_bit() {
    let model = Mlp::new(DType::F32);
    let (x, y) = Mlp::data(13, DType::F32);
    let expected = whole(&model.vars, &model.loss(&x, &y).unwrap());
    let accumulator = accumulate_means(&model, &[13], DType::F32);
    assert_eq!(read(&model.vars, &accumulator), expected);
}

#[test]
fn thousand_runs_lose_no_more_than_the_whole_batch_does() {
    // Compared with f64, as Composer was measured for 1,000 samples in runs of 37 (3.7e-7 in f32).
    let exact = Mlp::new(DType::F64);
    let (x, y) = Mlp::data(1000, DType::F64);
    let expected = whole(&exact.vars, &exact.loss(&x, &y).unwrap());
    let model = Mlp::new(DType::F32);
    let mut sizes = vec![37; 27];
    sizes.push(1);
    let accumulated = read(&model.vars, &accumulate_means(&model, &sizes, DType::F32));
    let (x, y) = Mlp::data(1000, DType::F32);
    let plain = whole(&model.vars, &model.loss(&x, &y).unwrap());
    let (ours, plain) = (
        distance(&accumulated, &expected),
        distance(&plain, &expected),
    );
    assert!(ours < 2e-6, "{ours:e}, the whole batch {plain:e}");
}

/// The sum of the squared distances of the samples in the mask, weighted by their number.
fn token_loss(model: &Mlp, x: &Tensor, y: &Tensor, mask: &Tensor) -> Loss {
    let each = (model.forward(x).unwrap() - y)
        .unwrap()
        .sqr()
        .unwrap()
        .sum(1)
        .unwrap();
    let sum = (each * mask).unwrap().sum_all().unwrap();
    Loss::sum(sum, flat(mask).iter().sum())
}

#[test]
fn token_weights_give_the_mean_over_all_tokens() {
    let dtype = DType::F64;
    let model = Mlp::new(dtype);
    let (x, y) = Mlp::data(10, dtype);
    let mask = Tensor::new(&[1f64, 1., 1., 0., 1., 0., 0., 0., 1., 1.], &Device::Cpu).unwrap();
    let Loss::Sum { value, weight, .. } = token_loss(&model, &x, &y, &mask) else {
        unreachable!()
    };
    let expected = whole(&model.vars, &(&value / weight).unwrap());

    let mut accumulator = support::accumulator(&model.vars);
    for (start, size) in [(0, 4), (4, 3), (7, 1), (8, 2)] {
        let part = |t: &Tensor| t.narrow(0, start, size).unwrap();
        let loss = token_loss(&model, &part(&x), &part(&y), &part(&mask));
        accumulator.add(loss, size).unwrap();
    }
    let error = distance(&read(&model.vars, &accumulator), &expected);
    assert!(error <= tolerance(dtype), "{error:e}");

    let summary = accumulator.update().unwrap().unwrap();
    assert_eq!(summary.samples, 10);
    let loss = flat(&value)[0] / weight;
    assert!((summary.loss.read().unwrap() - loss).abs() < 1e-12);
}

#[test]
fn a_run_that_weighs_nothing_takes_no_part_even_as_nan() {
    let model = Mlp::new(DType::F32);
    let mut accumulator = accumulate_means(&model, &[5], DType::F32);
    let before = read(&model.vars, &accumulator);
    let nan = (model
        .forward(&Mlp::data(2, DType::F32).0)
        .unwrap()
        .sum_all()
        .unwrap()
        * f64::NAN)
        .unwrap();
    accumulator.add(Loss::sum(nan, 0.), 2).unwrap();
    assert_eq!(read(&model.vars, &accumulator), before);
    assert_eq!(accumulator.samples(), 7);
}

#[test]
fn a_window_that_weighs_nothing_is_no_update() {
    let model = Mlp::new(DType::F32);
    let before = support::snapshot(&model.vars);
    let builder = GradientAccumulator::builder(sgd(&model.vars, 1.));
    let mut accumulator = builder.build().unwrap();
    let loss = model
        .forward(&Mlp::data(2, DType::F32).0)
        .unwrap()
        .sum_all()
        .unwrap();
    accumulator.add(Loss::sum(loss, 0.), 2).unwrap();
    assert!(accumulator.update().unwrap().is_none());
    assert!(accumulator.update().unwrap().is_none());
    assert_eq!(support::snapshot(&model.vars), before);
}

#[test]
fn half_floats_accumulate_in_single_precision() {
    for dtype in [DType::F16, DType::BF16] {
        let w = Var::ones(1, dtype, &Device::Cpu).unwrap();
        let mut accumulator = support::accumulator(std::slice::from_ref(&w));
        // 4,096 gradients of which every second is slightly above 1. A sum in bf16 would stop growing at 256.
        for i in 0..4096 {
            let gradient = if i % 2 == 0 { 1. } else { 1.0078125 };
            accumulator
                .add((w.as_tensor() * gradient).unwrap().sum_all().unwrap(), 1)
                .unwrap();
        }
        let mean = accumulator.gradients().unwrap();
        let mean = mean.get(&w).unwrap();
        assert_eq!(mean.dtype(), dtype);
        assert!((flat(mean)[0] - 1.0039).abs() < 0.008, "{mean}");
    }
}

#[test]
fn a_half_float_model_agrees_with_its_whole_batch() {
    let model = Mlp::new(DType::BF16);
    let (x, y) = Mlp::data(12, DType::BF16);
    let expected = whole(&model.vars, &model.loss(&x, &y).unwrap());
    let accumulator = accumulate_means(&model, &[5, 5, 2], DType::BF16);
    let error = distance(&read(&model.vars, &accumulator), &expected);
    assert!(error <= tolerance(DType::BF16), "{error:e}");
}

#[test]
fn a_var_used_twice_gets_both_gradients() {
    let w = Var::new(&[2f64, -3.], &Device::Cpu).unwrap();
    let x = wave(6, 1, DType::F64).unwrap().reshape((3, 2)).unwrap();
    let loss = |x: &Tensor| {
        let twice = x.broadcast_mul(&w)?.broadcast_mul(&w)?.broadcast_add(&w)?;
        twice.sqr()?.sum(1)?.mean_all()
    };
    let expected = whole(std::slice::from_ref(&w), &loss(&x).unwrap());
    let mut accumulator = support::accumulator(std::slice::from_ref(&w));
    for (start, size) in [(0, 2), (2, 1)] {
        let part = x.narrow(0, start, size).unwrap();
        accumulator.add(loss(&part).unwrap(), size).unwrap();
    }
    let error = distance(&read(&[w], &accumulator), &expected);
    assert!(error < 1e-13, "{error:e}");
}

#[test]
fn a_var_that_only_some_runs_use_counts_zero_in_the_others() {
    let (a, b) = (
        Var::new(2f64, &Device::Cpu).unwrap(),
        Var::new(5f64, &Device::Cpu).unwrap(),
    );
    for order in [[true, false], [false, true]] {
        let mut accumulator = support::accumulator(&[a.clone(), b.clone()]);
        for uses_b in order {
            let loss = match uses_b {
                true => (a.as_tensor() * b.as_tensor()).unwrap(),
                false => a.sqr().unwrap(),
            };
            accumulator.add(loss, 1).unwrap();
        }
        // the mean of b and 2a; the mean of a and 0
        assert_eq!(read(&[a.clone(), b.clone()], &accumulator), [[4.5], [1.]]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_gives_the_whole_batchs_gradient(sizes in proptest::collection::vec(1usize..9, 1..9)) {
        let model = Mlp::new(DType::F64);
        let (x, y) = Mlp::data(sizes.iter().sum(), DType::F64);
        let expected = whole(&model.vars, &model.loss(&x, &y).unwrap());
        let accumulator = accumulate_means(&model, &sizes, DType::F64);
        let error = distance(&read(&model.vars, &accumulator), &expected);
        prop_assert!(error <= 1e-13, "{sizes:?}: {error:e}");
    }

    #[test]
    fn any_weights_give_the_weighted_mean(
        runs in proptest::collection::vec((prop_oneof![Just(0f64), 1e-3..1e3], -1e2..1e2f64), 1..20)
    ) {
        // d/dx of `c · x` is c, so the mean gradient is Σ c / Σ w.
        let x = Var::new(1f64, &Device::Cpu).unwrap();
        let mut accumulator = support::accumulator(std::slice::from_ref(&x));
        for &(weight, slope) in &runs {
            let loss = (x.as_tensor() * (slope * weight)).unwrap();
            accumulator.add(Loss::sum(loss, weight), 1).unwrap();
        }
        let weight: f64 = runs.iter().map(|(weight, _)| weight).sum();
        if weight > 0. {
            let expected = runs.iter().map(|(w, slope)| slope * w).sum::<f64>() / weight;
            let gradient = read(&[x], &accumulator)[0][0];
            prop_assert!((gradient - expected).abs() <= 1e-11 * 1e2, "{gradient} {expected}");
        }
    }
}

#[test]
fn a_step_is_the_plain_candle_step() {
    // One micro-batch and candle's own optimizer: the same bits as a loop without this crate.
    let (ours, plain) = (Mlp::new(DType::F32), Mlp::new(DType::F32));
    let params = ParamsAdamW {
        lr: 0.02,
        ..Default::default()
    };
    let optimizer = foreign::<AdamW>(&ours.vars, params.clone());
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let mut optimizer = AdamW::new(plain.vars.clone(), params).unwrap();
    let (x, y) = Mlp::data(9, DType::F32);
    for step in 1..=5 {
        let report = trainer
            .step(&(&x, &y), |(x, y), _| ours.loss(&x, &y))
            .unwrap();
        let loss = plain.loss(&x, &y).unwrap();
        optimizer.backward_step(&loss).unwrap();
        assert_eq!(report.loss.read().unwrap(), flat(&loss)[0]);
        assert_eq!(
            (report.step, report.sizes, report.retries),
            (step, vec![9], 0)
        );
        assert_eq!(snapshot(&ours.vars), snapshot(&plain.vars));
    }
}

#[test]
fn a_retried_micro_batch_draws_the_same_random_numbers() {
    let model = Mlp::new(DType::F32);
    let batch = Mlp::data(12, DType::F32);
    let mut trainer = by_sgd(&model).policy(Halves(4)).seed(42).build().unwrap();
    let seen = RefCell::new(Vec::new());
    let mut step = || {
        let stepped = trainer.step(&batch, |(x, y), micro| {
            if !micro.is_check() {
                let drawn = (micro.samples.start, micro.attempt, micro.seed());
                seen.borrow_mut().push(drawn);
            }
            model.loss(&x, &y)
        });
        stepped.unwrap();
        seen.take()
    };
    let first = step();
    let armed = Faults::in_phase(Phase::Backward, 1).arm();
    let second = step();
    drop(armed);
    assert_eq!(first.len(), 3);
    assert_eq!(second.len(), 4);
    let (failed, again) = (second[1], second[2]);
    assert_eq!((failed.0, failed.1), (4, 0));
    assert_eq!((again.0, again.1), (4, 1));
    assert_eq!(failed.2, again.2);
    let mut seeds: Vec<u64> = first.iter().chain(&second).map(|seen| seen.2).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 6);
}

#[test]
fn it_is_the_hand_written_loop_to_the_bit() {
    let sizes = [8, 8, 8, 8, 8, 8, 3];
    let (ours, by_hand) = (Mlp::new(DType::F32), Mlp::new(DType::F32));
    let mut trainer = accumulating(&ours.vars, 3);
    let mut reports = Vec::new();
    for batch in &batches(&sizes) {
        reports.extend(trainer.step(batch, |(x, y), _| ours.loss(&x, &y)).unwrap());
    }
    reports.extend(trainer.update().unwrap());
    assert!(trainer.update().unwrap().is_none());

    let builder = GradientAccumulator::builder(adamw(&by_hand.vars, 0.01));
    let mut accumulator = builder.build().unwrap();
    for (i, (x, y)) in batches(&sizes).iter().enumerate() {
        accumulator
            .add(by_hand.loss(x, y).unwrap(), sizes[i])
            .unwrap();
        if (i + 1) % 3 == 0 {
            accumulator.update().unwrap();
        }
    }
    accumulator.update().unwrap();

    assert_eq!(snapshot(&ours.vars), snapshot(&by_hand.vars));
    let summary: Vec<_> = reports
        .iter()
        .map(|r| (r.step, r.samples, r.sizes.len()))
        .collect();
    assert_eq!(summary, [(1, 24, 3), (2, 24, 3), (3, 3, 1)]);
}
