//! candle's optimizers, clipped by the norm of all gradients.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::error::GroupError;
use candle_headroom::optim::{Commit, Committed};
use candle_headroom::{AccumulatingTrainer, Error, Foreign, Sgd};
use candle_nn::{Optimizer, SGD};

use crate::support::{Mlp, flat, wave};

fn vars(dtype: DType) -> Vec<Var> {
    let vars = [&[4usize, 3][..], &[5]].map(|shape| {
        let values = wave(shape.iter().product(), 1, dtype).unwrap();
        Var::from_tensor(&values.reshape(shape).unwrap()).unwrap()
    });
    vars.to_vec()
}

fn gradients(vars: &[Var], step: usize) -> GradStore {
    let mut store = GradStore::default();
    for (index, var) in vars.iter().enumerate() {
        let values = wave(var.elem_count(), 17 * step + index, var.dtype()).unwrap();
        store.insert(var, values.reshape(var.dims()).unwrap());
    }
    store
}

/// As the fused optimizer clips, which is compared with PyTorch's.
#[test]
fn gradients_are_clipped_as_the_fused_optimizers_clip() {
    for (dtype, tolerance) in [(DType::F64, 1e-14), (DType::F32, 1e-6)] {
        for most in [0.1, 1e6] {
            let (ours, candles) = (vars(dtype), vars(dtype));
            let builder = Sgd::builder(ours.clone()).learning_rate(0.1);
            let mut fused = builder.clip_norm(most).build().unwrap();
            let sgd = SGD::new(candles.clone(), 0.1).unwrap();
            let mut foreign = Foreign::new(sgd, candles.clone()).clip_norm(most).unwrap();
            assert_eq!(foreign.gradient_norm(), None);
            for step in 0..3 {
                fused.commit(&gradients(&ours, step)).unwrap();
                let committed = foreign.commit(&gradients(&candles, step)).unwrap();
                assert_eq!(committed, Committed::Applied);
                let norms = [fused.gradient_norm(), foreign.gradient_norm()].map(Option::unwrap);
                assert!((norms[0] - norms[1]).abs() <= tolerance * norms[0]);
                for (ours, candles) in ours.iter().zip(&candles) {
                    for (a, b) in flat(ours).iter().zip(flat(candles)) {
                        assert!((a - b).abs() <= tolerance, "{dtype:?} {most}: {a} {b}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_skips_the_step() {
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        let vars = vars(DType::F32);
        let sgd = SGD::new(vars.clone(), 0.1).unwrap();
        let mut foreign = Foreign::new(sgd, vars.clone()).clip_norm(1.).unwrap();
        let mut store = gradients(&vars, 0);
        let spoilt = Tensor::new(&[1., bad, 0., 0., 0.], &Device::Cpu).unwrap();
        store.insert(&vars[1], spoilt);
        let before = vars.iter().map(|var| flat(var)).collect::<Vec<_>>();
        assert_eq!(foreign.commit(&store).unwrap(), Committed::Skipped);
        assert!(!foreign.gradient_norm().unwrap().is_finite());
        let after = vars.iter().map(|var| flat(var)).collect::<Vec<_>>();
        assert_eq!(after, before);
        // Without any gradient there is nothing to clip.
        let committed = foreign.commit(&GradStore::default()).unwrap();
        assert_eq!(
            (committed, foreign.gradient_norm()),
            (Committed::Applied, Some(0.))
        );
    }
}

#[test]
fn a_norm_out_of_range_is_refused() {
    for norm in [0., -1., f64::NAN, f64::INFINITY] {
        let vars = vars(DType::F32);
        let sgd = SGD::new(vars.clone(), 0.1).unwrap();
        let error = Foreign::new(sgd, vars).clip_norm(norm).unwrap_err();
        assert!(
            error.to_string().contains("`clip_norm` of Foreign"),
            "{error}"
        );
    }
}

/// A report has the norm and the learning rate of its update.
#[test]
fn reports_have_norm_and_learning_rate() {
    let (x, y) = Mlp::data(8, DType::F32);
    let batch = (x, y);
    let model = Mlp::new(DType::F32);
    let fused = Sgd::builder(&model.varmap).learning_rate(0.25);
    let fused = fused.clip_norm(1.).build().unwrap();
    let mut trainer = AccumulatingTrainer::builder(fused, 2).build().unwrap();
    let step = |trainer: &mut AccumulatingTrainer<Sgd>| {
        trainer
            .step(&batch, |(x, y), _| model.loss(&x, &y))
            .unwrap()
    };
    assert!(step(&mut trainer).is_none());
    let report = step(&mut trainer).unwrap();
    assert_eq!(report.learning_rate, Some(0.25));
    let norm = trainer.optimizer().progress().unwrap().gradient_norm;
    assert!(norm.is_some_and(|norm| norm > 0.));
    assert_eq!(report.gradient_norm, norm);
    trainer.optimizer_mut().set_learning_rate(0.5);
    step(&mut trainer);
    assert_eq!(step(&mut trainer).unwrap().learning_rate, Some(0.5));

    // An optimizer that computes no norm.
    let vars = model.varmap.all_vars();
    let foreign = Foreign::new(SGD::new(vars.clone(), 0.1).unwrap(), vars);
    let mut trainer = AccumulatingTrainer::builder(foreign, 1).build().unwrap();
    let done = trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
    let report = done.unwrap().unwrap();
    assert_eq!(
        (report.learning_rate, report.gradient_norm),
        (Some(0.1), None)
    );
}

/// Moves one parameter, and finds its group of ranks broken.
struct Torn(Vec<Var>);

impl Optimizer for Torn {
    type Config = ();

    fn new(vars: Vec<Var>, _: ()) -> candle_core::Result<Self> {
        Ok(Self(vars))
    }

    fn step(&mut self, gradients: &GradStore) -> candle_core::Result<()> {
        let var = &self.0[0];
        let gradient = gradients.get(var).expect("a gradient");
        var.set(&var.as_tensor().sub(gradient)?)?;
        Err(Error::from(GroupError::Broken("torn".to_owned())).into())
    }

    fn learning_rate(&self) -> f64 {
        1.
    }

    fn set_learning_rate(&mut self, _: f64) {}
}

/// It would be applied a second time to what has moved already.
#[test]
fn an_update_that_a_lost_rank_interrupts_is_not_repeated() {
    let batch = Mlp::data(8, DType::F32);
    let model = Mlp::new(DType::F32);
    let vars = model.varmap.all_vars();
    let foreign = Foreign::new(Torn(vars.clone()), vars.clone());
    let mut trainer = AccumulatingTrainer::builder(foreign, 1).build().unwrap();
    let before = flat(&vars[0]);
    let mut step = || trainer.step(&batch, |(x, y), _| model.loss(&x, &y));
    let Err(Error::UpdateInterrupted(first)) = step() else {
        panic!("it was interrupted");
    };
    assert!(matches!(first.reason, Some(Error::Group(_))), "{first}");
    let torn = flat(&vars[0]);
    assert_ne!(torn, before);
    assert!(matches!(step(), Err(Error::UpdateInterrupted(_))));
    assert_eq!(flat(&vars[0]), torn);
}

/// Ranks compare this, so that one with another optimizer is noticed.
#[test]
fn ranks_are_told_which_optimizer_it_is() {
    let vars = vars(DType::F32);
    let sgd = Foreign::new(SGD::new(vars.clone(), 0.1).unwrap(), vars.clone());
    let adam = candle_nn::AdamW::new_lr(vars.clone(), 0.1).unwrap();
    let adam = Foreign::new(adam, vars);
    for (lines, name) in [(sgd.describe(), "SGD"), (adam.describe(), "AdamW")] {
        assert!(
            lines.iter().any(|line| line.contains(name)),
            "{name}: {lines:?}"
        );
    }
}
