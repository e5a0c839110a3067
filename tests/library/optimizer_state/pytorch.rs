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
    let mut optimizer = AdamW::new(parameters.clone(), params).unwrap();
    let state = StateDict::load(data("pytorch_adamw.safetensors")).unwrap();
    optimizer.load_state_dict(&state).unwrap();
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

#[test]
fn schedules_are_pytorchs() {
    let tables = candle_core::safetensors::load(data("tables.safetensors"), &Device::Cpu).unwrap();
    let cosine = LearningRate::cosine(0.1, 50).unwrap().floor(0.001).unwrap();
    for (name, schedule) in [
        ("cosine", cosine),
        ("cosine_warm_up", cosine.warm_up(10)),
        ("step", LearningRate::steps(0.1, 10, 0.5).unwrap()),
    ] {
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
