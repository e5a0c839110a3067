//! Accumulated gradients against the whole batch's, in every way of weighing and cutting.

mod support;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::testing::Faults;
use candle_headroom::{
    Error, GradientAccumulator, Loss, LossError, ParameterError, Phase, WindowLost,
};
use candle_nn::{Optimizer, SGD};
use proptest::prelude::*;
use support::{ConvNet, Mlp, distance, flat, wave};

/// The gradients of `vars`, in their order, from a store.
fn read(vars: &[Var], accumulator: &GradientAccumulator) -> Vec<Vec<f64>> {
    let store = accumulator.gradients().unwrap();
    vars.iter()
        .map(|var| flat(store.get(var).unwrap()))
        .collect()
}

fn whole(vars: &[Var], loss: &Tensor) -> Vec<Vec<f64>> {
    let store = loss.backward().unwrap();
    vars.iter()
        .map(|var| flat(store.get(var).unwrap()))
        .collect()
}

/// Relative to the largest gradient. Float64 leaves rounding of a few sums; float32's is 2^29 times coarser.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-13,
        DType::F32 => 1e-6,
        _ => 2e-2, // a half float's gradient has 8 or 11 bits to begin with
    }
}

/// Accumulates mean losses over runs of these sizes.
fn accumulate_means(model: &Mlp, sizes: &[usize], dtype: DType) -> GradientAccumulator {
    let (x, y) = Mlp::data(sizes.iter().sum(), dtype);
    let mut accumulator = GradientAccumulator::new(model.vars.clone()).unwrap();
    let mut start = 0;
    for &size in sizes {
        let (x, y) = (
            x.narrow(0, start, size).unwrap(),
            y.narrow(0, start, size).unwrap(),
        );
        accumulator.add(model.loss(&x, &y).unwrap(), size).unwrap();
        start += size;
    }
    accumulator
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
    // Against float64, as Composer's 1000/37 was measured (3.7e-7 in float32).
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

/// Squared distances of each sample, those that count, their sum as a loss with their number as weight.
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
    let Loss::Sum { value, weight } = token_loss(&model, &x, &y, &mask) else {
        unreachable!()
    };
    let expected = whole(&model.vars, &(&value / weight).unwrap());

    let mut accumulator = GradientAccumulator::new(model.vars.clone()).unwrap();
    for (start, size) in [(0, 4), (4, 3), (7, 1), (8, 2)] {
        let part = |t: &Tensor| t.narrow(0, start, size).unwrap();
        let loss = token_loss(&model, &part(&x), &part(&y), &part(&mask));
        accumulator.add(loss, size).unwrap();
    }
    let error = distance(&read(&model.vars, &accumulator), &expected);
    assert!(error <= tolerance(dtype), "{error:e}");

    let mut optimizer = SGD::new(model.vars.clone(), 0.).unwrap();
    let window = accumulator.flush(&mut optimizer).unwrap().unwrap();
    assert_eq!(window.samples, 10);
    let loss = flat(&value)[0] / weight;
    assert!((window.loss.read().unwrap() - loss).abs() < 1e-12);
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
    let mut accumulator = GradientAccumulator::new(model.vars.clone()).unwrap();
    let mut optimizer = SGD::new(model.vars.clone(), 1.).unwrap();
    let loss = model
        .forward(&Mlp::data(2, DType::F32).0)
        .unwrap()
        .sum_all()
        .unwrap();
    accumulator.add(Loss::sum(loss, 0.), 2).unwrap();
    assert!(accumulator.flush(&mut optimizer).unwrap().is_none());
    assert!(accumulator.flush(&mut optimizer).unwrap().is_none());
    assert_eq!(support::snapshot(&model.vars), before);
}

#[test]
fn half_floats_accumulate_in_single_precision() {
    for dtype in [DType::F16, DType::BF16] {
        let w = Var::ones(1, dtype, &Device::Cpu).unwrap();
        let mut accumulator = GradientAccumulator::new(vec![w.clone()]).unwrap();
        // 4,096 gradients, every second a hair above 1: a bf16 sum would stop growing at 256.
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
    let mut accumulator = GradientAccumulator::new(vec![w.clone()]).unwrap();
    for (start, size) in [(0, 2), (2, 1)] {
        let part = x.narrow(0, start, size).unwrap();
        accumulator.add(loss(&part).unwrap(), size).unwrap();
    }
    let error = distance(&read(&[w], &accumulator), &expected);
    assert!(error < 1e-13, "{error:e}");
}

#[test]
fn frozen_vars_are_left_out_and_unreached_ones_reported() {
    let model = Mlp::new(DType::F32);
    let (trained, frozen) = model.vars.split_at(2);
    let idle = Var::ones(3, DType::F32, &Device::Cpu).unwrap();
    let mut vars = trained.to_vec();
    vars.push(idle.clone());
    let mut accumulator = GradientAccumulator::new(vars).unwrap();
    let (x, y) = Mlp::data(4, DType::F32);
    accumulator.add(model.loss(&x, &y).unwrap(), 4).unwrap();
    let store = accumulator.gradients().unwrap();
    assert!(frozen.iter().all(|var| store.get(var).is_none()));
    assert_eq!(store.get_ids().count(), 2);
    let unreached = accumulator.unreached();
    assert_eq!(unreached.len(), 1);
    assert_eq!(unreached[0].id(), idle.id());
}

#[test]
fn a_var_that_only_some_runs_use_counts_zero_in_the_others() {
    let (a, b) = (
        Var::new(2f64, &Device::Cpu).unwrap(),
        Var::new(5f64, &Device::Cpu).unwrap(),
    );
    for order in [[true, false], [false, true]] {
        let mut accumulator = GradientAccumulator::new(vec![a.clone(), b.clone()]).unwrap();
        for uses_b in order {
            let loss = match uses_b {
                true => (a.as_tensor() * b.as_tensor()).unwrap(),
                false => a.sqr().unwrap(),
            };
            accumulator.add(loss, 1).unwrap();
        }
        // mean of b and 2a; mean of a and nothing
        assert_eq!(read(&[a.clone(), b.clone()], &accumulator), [[4.5], [1.]]);
    }
}

#[test]
fn softmax_without_backward_is_found() {
    let model = Mlp::new(DType::F32);
    let cut =
        candle_nn::ops::softmax_last_dim(&model.forward(&Mlp::data(4, DType::F32).0).unwrap())
            .unwrap();
    let mut accumulator = GradientAccumulator::new(model.vars.clone()).unwrap();
    let added = accumulator.add(cut.sqr().unwrap().sum_all().unwrap(), 4);
    let error = added
        .and_then(|()| accumulator.gradients().map(|_| ()))
        .unwrap_err();
    let text = error.to_string();
    let is_named = matches!(&error, Error::Loss(loss) if matches!(**loss, LossError::Disconnected));
    assert!(is_named || text.contains("softmax-last-dim"), "{text}");
}

#[test]
fn bad_input_is_named_and_changes_nothing() {
    let model = Mlp::new(DType::F32);
    let mut accumulator = accumulate_means(&model, &[5], DType::F32);
    let before = read(&model.vars, &accumulator);
    let scalar = || {
        model
            .forward(&Mlp::data(2, DType::F32).0)
            .unwrap()
            .sum_all()
            .unwrap()
    };
    for (loss, samples, word) in [
        (Loss::mean(model.vars[0].as_tensor().clone()), 1, "shape"),
        (Loss::mean(scalar()), 0, "0 samples"),
        (Loss::sum(scalar(), -1.), 1, "-1"),
        (Loss::sum(scalar(), f64::NAN), 1, "NaN"),
        (Loss::sum(scalar(), f64::INFINITY), 1, "inf"),
        (Loss::sum(scalar(), 1e-40), 1, "1e-40"),
    ] {
        let error = accumulator.add(loss, samples).unwrap_err();
        assert!(matches!(error, Error::Loss(_)), "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(read(&model.vars, &accumulator), before);
        assert_eq!(accumulator.samples(), 5);
    }

    let parameter = |vars| match GradientAccumulator::new(vars).unwrap_err() {
        Error::Parameter(error) => *error,
        error => panic!("{error}"),
    };
    let var = &model.vars[0];
    assert!(matches!(parameter(vec![]), ParameterError::None));
    let integer = Var::zeros(2, DType::U32, &Device::Cpu).unwrap();
    assert!(matches!(parameter(vec![integer]), ParameterError::None));
    let twice = vec![var.clone(), model.vars[1].clone(), var.clone()];
    assert!(matches!(
        parameter(twice),
        ParameterError::Duplicate { parameter, .. } if parameter == "2"
    ));
}

#[test]
fn exhaustion_before_the_sums_keeps_the_window_and_within_them_says_that_it_is_lost() {
    let model = Mlp::new(DType::F32);
    let (x, y) = Mlp::data(3, DType::F32);
    // Points of the second `add`: one before the sums, then one for each Var.
    for point in 0..=model.vars.len() {
        let mut accumulator = accumulate_means(&model, &[5], DType::F32);
        let before = read(&model.vars, &accumulator);
        let armed = Faults::in_phase(Phase::Accumulate, point).arm();
        let error = accumulator.add(model.loss(&x, &y).unwrap(), 3).unwrap_err();
        assert_eq!(armed.fired(), 1);
        drop(armed);
        if point <= 1 {
            assert_eq!(
                error.resource_exhausted().unwrap().phase,
                Some(Phase::Accumulate)
            );
            assert_eq!(read(&model.vars, &accumulator), before);
            accumulator.add(model.loss(&x, &y).unwrap(), 3).unwrap();
            assert_eq!(accumulator.samples(), 8);
        } else {
            let Error::WindowLost(lost) = error else {
                panic!("{error}")
            };
            let WindowLost {
                samples, reason, ..
            } = *lost;
            assert_eq!(
                reason.resource_exhausted().unwrap().phase,
                Some(Phase::Accumulate)
            );
            assert_eq!(samples, 5);
            assert_eq!(accumulator.samples(), 0);
        }
    }
}

#[test]
fn batch_norm_statistics_need_not_be_trained() {
    let model = ConvNet::new();
    let (x, y) = ConvNet::data(4);
    let mut accumulator = GradientAccumulator::new(model.vars.clone()).unwrap();
    accumulator.add(model.loss(&x, &y).unwrap(), 4).unwrap();
    assert_eq!(accumulator.unreached().len(), 2);
    let mut accumulator = GradientAccumulator::new(model.trained()).unwrap();
    accumulator.add(model.loss(&x, &y).unwrap(), 4).unwrap();
    assert!(accumulator.unreached().is_empty());
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
        let mut accumulator = GradientAccumulator::new(vec![x.clone()]).unwrap();
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
