//! State taken over from PyTorch, and its schedules.

use super::*;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/optimizers")
        .join(name)
}

#[test]
fn goes_on_from_a_checkpoint_of_pytorch() {
    let expected = data("pytorch_adamw_expected.safetensors");
    let expected = candle_core::safetensors::load(expected, &Device::Cpu).unwrap();
    let names = ["hidden.weight", "hidden.bias", "out.weight", "out.bias"];
    let parameters: Vec<_> = (names.iter())
        .map(|name| {
            let before = &expected[&format!("before/{name}")];
            (
                name.to_string(),
                Var::from_tensor(&before.copy().unwrap()).unwrap(),
            )
        })
        .collect();
    let params = ParamsAdamW {
        lr: 0.01,
        weight_decay: 0.1,
        ..Default::default()
    };
    let mut optimizer = AdamW::builder(parameters.clone())
        .params(params)
        .build()
        .unwrap();
    let state = StateDict::load(data("pytorch_adamw.safetensors")).unwrap();
    optimizer.load_state(&state).unwrap();
    assert_eq!(optimizer.learning_rate(), 0.01);
    for step in 1..=3 {
        let mut store = GradStore::default();
        for (name, var) in &parameters {
            store.insert(var, expected[&format!("gradient/{step}/{name}")].clone());
        }
        optimizer.commit(&store).unwrap();
        for (name, var) in &parameters {
            let after = flat(&expected[&format!("after/{step}/{name}")]);
            let distance = support::distance(&[flat(var)], &[after]);
            // Single rounding errors of f32: the same sums in another order.
            assert!(distance < 3e-7, "{name} after step {step}: {distance:e}");
        }
    }
}

/// PyTorch's SGD saves `momentum_buffer` and no `step`, and without momentum nothing.
#[test]
fn goes_on_from_momentum_without_a_step() {
    for momentum in [0.9, 0.] {
        let params = ParamsSgd {
            lr: 0.1,
            momentum,
            // It tells a first step from a later one.
            dampening: 0.5,
            ..ParamsSgd::default()
        };
        let whole = named(DType::F32, &[0, 1, 2, 3]);
        let mut optimizer = Sgd::builder(whole.clone()).params(params).build().unwrap();
        for step in 0..2 {
            optimizer.commit(&gradients(&whole, step)).unwrap();
        }
        let mut state = optimizer.state().unwrap();
        state.metadata.clear();
        state.tensors.retain(|name, _| !name.ends_with(".step"));
        assert_eq!(state.tensors.len(), if momentum > 0. { 4 } else { 0 });
        let other = named(DType::F32, &[0, 1, 2, 3]);
        for ((_, into), (_, from)) in other.iter().zip(&whole) {
            into.set(&from.copy().unwrap()).unwrap();
        }
        let mut resumed = Sgd::builder(other.clone()).params(params).build().unwrap();
        resumed.load_state(&state).unwrap();
        optimizer.commit(&gradients(&whole, 2)).unwrap();
        resumed.commit(&gradients(&other, 2)).unwrap();
        assert_eq!(values(&whole), values(&other));
        // The state of this crate has one, and a rule that counts steps needs it.
        let mut own = optimizer.state().unwrap();
        own.tensors.retain(|name, _| !name.ends_with(".step"));
        let error = resumed.load_state(&own).unwrap_err().to_string();
        assert!(error.contains("missing: layer.0.step"), "{error}");
        let mut adamw = AdamW::builder(other.clone()).build().unwrap();
        let mut counted = adamw.state().unwrap();
        counted.metadata.clear();
        counted.tensors.retain(|name, _| !name.ends_with(".step"));
        let error = adamw.load_state(&counted).unwrap_err().to_string();
        assert!(error.contains("missing: layer.0.step"), "{error}");
    }
}

#[test]
fn schedules_are_pytorchs() {
    let tables = candle_core::safetensors::load(data("tables.safetensors"), &Device::Cpu).unwrap();
    let cosine = LearningRate::builder(0.1).cosine(50).floor(0.001);
    for (name, schedule) in [
        ("cosine", cosine),
        ("cosine_warm_up", cosine.warm_up(10)),
        ("step", LearningRate::builder(0.1).steps(10, 0.5)),
    ] {
        let schedule = schedule.build().unwrap();
        let rates = flat(&tables[&format!("schedule.{name}/lr")]);
        for (step, rate) in rates.into_iter().enumerate() {
            let ours = schedule.at(step as u64);
            assert!(
                (ours - rate).abs() < 1e-15,
                "{name} at {step}: {ours} and {rate}"
            );
        }
    }
}

#[test]
fn decays_end_at_the_floor_and_never_rise() {
    let builder = || LearningRate::builder(0.1);
    for schedule in [
        builder().cosine(50),
        builder().linear(50),
        builder().steps(7, 0.5),
    ] {
        let schedule = schedule.floor(0.001).warm_up(10).build().unwrap();
        let rates: Vec<f64> = (0..200).map(|step| schedule.at(step)).collect();
        assert!(rates[..11].is_sorted());
        assert!(rates[10..].iter().rev().is_sorted(), "{rates:?}");
        assert_eq!(rates[10], 0.1);
        assert_eq!(rates[199], 0.001);
    }
}

#[test]
fn odd_lengths_do_no_harm() {
    let builder = || LearningRate::builder(0.1);
    let schedule = builder().cosine(0).build().unwrap();
    assert_eq!((schedule.at(0), schedule.at(u64::MAX)), (0., 0.));
    let late = builder().linear(5).warm_up(10).build().unwrap();
    assert_eq!(late.at(10), 0.);
    let steps = builder().steps(1, 0.5).build().unwrap();
    assert_eq!(steps.at(u64::MAX), 0.);
}

#[test]
fn bad_numbers_of_a_schedule_are_refused() {
    for bad in [-1., f64::NAN, f64::INFINITY] {
        assert!(LearningRate::builder(bad).build().is_err());
        assert!(LearningRate::builder(bad).cosine(1).build().is_err());
        let builder = LearningRate::builder(0.1);
        assert!(builder.steps(1, bad).build().is_err());
        assert!(builder.floor(bad).build().is_err());
    }
    // The rate would jump up to it behind the warm-up.
    let high = LearningRate::builder(0.1).warm_up(5).floor(0.2).build();
    assert_eq!(
        high.unwrap_err().to_string(),
        "`floor` of LearningRate must be at most the peak, got 0.2"
    );
    LearningRate::builder(0.1).floor(0.1).build().unwrap();
    let error = LearningRate::builder(0.1)
        .steps(0, 0.5)
        .build()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "`every` of LearningRate must be finite and above 0, got 0"
    );
}
