//! Averages of parameters beside an optimizer.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::optim::{Commit, Committed, Ema, Group, GroupOptions, StateDict};
use candle_headroom::testing::out_of_memory;
use candle_headroom::{AdamW, AdaptiveTrainer, Error, Sgd};

use crate::support::{Mlp, flat, wave};

const SHAPES: [&[usize]; 3] = [&[3, 5], &[7], &[]];

fn named(dtype: DType) -> Vec<(String, Var)> {
    let vars = SHAPES.iter().enumerate().map(|(index, shape)| {
        let values = wave(shape.iter().product(), index, dtype).unwrap();
        let var = Var::from_tensor(&values.reshape(*shape).unwrap()).unwrap();
        (format!("p{index}"), var)
    });
    vars.collect()
}

fn gradients(parameters: &[(String, Var)], step: usize) -> GradStore {
    let mut store = GradStore::default();
    for (index, (_, var)) in parameters.iter().enumerate() {
        let values = wave(var.elem_count(), 31 * step + index, var.dtype()).unwrap();
        store.insert(var, values.reshape(var.dims()).unwrap());
    }
    store
}

fn values(parameters: &[(String, Var)]) -> Vec<Vec<f64>> {
    parameters.iter().map(|(_, var)| flat(var)).collect()
}

fn averages<O: Commit>(ema: &Ema<O>) -> Vec<Vec<f64>> {
    let state = ema.state().unwrap();
    let average = |index| flat(&state.tensors[&format!("p{index}.ema")]);
    (0..SHAPES.len()).map(average).collect()
}

#[test]
fn averages_are_those_of_the_formula() {
    for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 3e-6), (DType::BF16, 1e-6)] {
        let parameters = named(dtype);
        let sgd = Sgd::builder(parameters.clone()).learning_rate(0.01);
        let mut ema = Ema::new(sgd.build().unwrap(), 0.99).unwrap();
        let mut expected = values(&parameters);
        for step in 0..50 {
            ema.commit(&gradients(&parameters, step % 7)).unwrap();
            let now = values(&parameters);
            for (average, now) in expected.iter_mut().flatten().zip(now.iter().flatten()) {
                *average += (now - *average) * 0.01;
            }
        }
        let found = averages(&ema);
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            let error = (found - expected).abs();
            assert!(
                error <= tolerance * expected.abs().max(1.),
                "{dtype:?}: {error:e}"
            );
        }
        let types = ema.averages().unwrap();
        assert!(types.values().all(|average| average.dtype() == dtype));
        assert_eq!(types["p0"].dims(), SHAPES[0]);
    }
}

#[test]
fn parameters_come_back_after_an_evaluation() {
    for dtype in [DType::F32, DType::BF16] {
        let parameters = named(dtype);
        let adamw = AdamW::builder(parameters.clone()).learning_rate(0.1);
        let mut ema = Ema::new(adamw.build().unwrap(), 0.5).unwrap();
        for step in 0..3 {
            ema.commit(&gradients(&parameters, step)).unwrap();
        }
        let trained = values(&parameters);
        let average = ema.averages().unwrap();
        let seen = ema.with_averages(|| Ok(values(&parameters))).unwrap();
        let names = ["p0", "p1", "p2"].map(|name| flat(&average[name]));
        assert_eq!(seen, names);
        assert_ne!(seen, trained);
        assert_eq!(values(&parameters), trained);
        let failed = ema.with_averages(|| Err::<(), _>(out_of_memory().into()));
        assert!(failed.is_err());
        assert_eq!(values(&parameters), trained);
        let panics = || ema.with_averages(|| std::panic::resume_unwind(Box::new("on purpose")));
        let panicked: std::thread::Result<Result<(), Error>> =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(panicked.is_err());
        assert_eq!(values(&parameters), trained);
    }
}

#[test]
fn a_skipped_step_does_not_count() {
    let parameters = named(DType::F32);
    let adamw = AdamW::builder(parameters.clone()).clip_norm(1.);
    let mut ema = Ema::new(adamw.build().unwrap(), 0.5).unwrap();
    ema.commit(&gradients(&parameters, 0)).unwrap();
    let before = averages(&ema);
    let mut bad = gradients(&parameters, 1);
    let inf = Tensor::new(f32::INFINITY, &Device::Cpu).unwrap();
    bad.insert(&parameters[2].1, inf);
    assert_eq!(ema.commit(&bad).unwrap(), Committed::Skipped);
    assert_eq!(averages(&ema), before);
    assert!(ema.gradient_norm().unwrap().is_nan());
    assert_eq!(ema.learning_rate(), Some(1e-3));
}

/// A trainer's run with its averages goes on bit by bit.
#[test]
fn a_run_goes_on_with_its_averages() {
    let (x, y) = Mlp::data(8, DType::F32);
    let start = || {
        let model = Mlp::new(DType::F32);
        let adamw = AdamW::builder(&model.varmap).learning_rate(0.01);
        let ema = Ema::new(adamw.build().unwrap(), 0.9).unwrap();
        let builder = AdaptiveTrainer::builder(ema).policy(Fixed::new(4).unwrap());
        (model, builder.build().unwrap())
    };
    let (model, mut whole) = start();
    let (again, mut resumed) = start();
    let batch = (x, y);
    let train = |model: &Mlp, trainer: &mut AdaptiveTrainer<Ema<AdamW>>| {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap();
    };
    (0..3).for_each(|_| train(&model, &mut whole));
    let state = whole.optimizer().state().unwrap();
    for (name, var) in again.varmap.data().lock().unwrap().iter() {
        var.set(&model.varmap.data().lock().unwrap()[name]).unwrap();
    }
    resumed.load_state(&whole.state().unwrap()).unwrap();
    let loaded = resumed.optimizer().state().unwrap();
    assert_eq!(state.tensors.len(), loaded.tensors.len());
    (0..2).for_each(|_| train(&model, &mut whole));
    (0..2).for_each(|_| train(&again, &mut resumed));
    let [whole, resumed] = [&whole, &resumed].map(|t| t.optimizer().state().unwrap().tensors);
    assert!(whole.keys().any(|name| name.ends_with(".ema")));
    for (name, tensor) in &whole {
        assert_eq!(flat(tensor), flat(&resumed[name]), "{name}");
    }
}

#[test]
fn state_that_does_not_fit_changes_nothing() {
    let parameters = named(DType::F32);
    let build = || Sgd::builder(parameters.clone()).learning_rate(0.1);
    let mut ema = Ema::new(build().build().unwrap(), 0.5).unwrap();
    ema.commit(&gradients(&parameters, 0)).unwrap();
    let (before, good) = (averages(&ema), ema.state().unwrap());
    let refused = |ema: &mut Ema<Sgd>, state: &StateDict| match ema.load_state(state) {
        Err(Error::State(error)) => error,
        other => panic!("{other:?}"),
    };
    let mut state = good.clone();
    state.tensors.remove("p1.ema");
    let wrong = Tensor::zeros(9, DType::F32, &Device::Cpu).unwrap();
    state.tensors.insert("p0.ema".to_owned(), wrong);
    let error = refused(&mut ema, &state);
    assert_eq!(error.missing, ["p0.ema", "p1.ema"]);
    assert!(
        error.unfit[0].starts_with("p0.ema has shape [9]"),
        "{error}"
    );
    // What is not an average is the optimizer's.
    let mut state = good.clone();
    let more = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    state.tensors.insert("p7.ema".to_owned(), more);
    assert_eq!(refused(&mut ema, &state).unexpected, ["p7.ema"]);
    assert_eq!(averages(&ema), before);
    ema.load_state(&good).unwrap();
    assert_eq!(averages(&ema), before);
}

#[test]
fn frozen_parameters_have_no_average() {
    let parameters = named(DType::F32);
    let (first, rest) = parameters.split_at(1);
    let builder = Sgd::builder(first.to_vec()).group(Group::from(rest.to_vec()).frozen());
    let mut ema = Ema::new(builder.build().unwrap(), 0.5).unwrap();
    assert_eq!(Commit::state_bytes(&ema), Some(4 * 15));
    let names = |ema: &Ema<Sgd>| {
        let mut names: Vec<_> = ema.averages().unwrap().into_keys().collect();
        names.sort();
        names
    };
    assert_eq!(names(&ema), ["p0"]);
    let thawed = GroupOptions::default();
    ema.optimizer_mut().set_group(1, thawed).unwrap();
    ema.commit(&gradients(&parameters, 0)).unwrap();
    assert_eq!(names(&ema), ["p0", "p1", "p2"]);
    ema.optimizer_mut()
        .set_group(0, thawed.frozen(true))
        .unwrap();
    ema.commit(&gradients(&parameters, 0)).unwrap();
    assert_eq!(names(&ema), ["p1", "p2"]);
    assert_eq!(ema.into_inner().progress().unwrap().steps, 2);
}

#[test]
fn what_cannot_be_averaged_is_refused() {
    let build = || Sgd::builder(named(DType::F32));
    for decay in [-0.1, 1., f64::NAN] {
        let error = Ema::new(build().build().unwrap(), decay).unwrap_err();
        assert!(error.to_string().contains("`decay` of Ema"), "{error}");
    }
    let error = Ema::new(build().sharded().build().unwrap(), 0.9).unwrap_err();
    assert!(error.to_string().contains("sharded()"), "{error}");
    let ema = Ema::new(build().build().unwrap(), 0.9).unwrap();
    let said = ema.describe();
    assert_eq!(
        said.last().unwrap(),
        "parameters are averaged with decay 0.9"
    );
    let saves = ema
        .remedies()
        .iter()
        .filter_map(|remedy| remedy.saves)
        .max();
    assert_eq!(saves, Some(4 * (15 + 7 + 1)));
}
