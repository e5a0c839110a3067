//! Promise 11, gradients arrive: a trainable parameter that receives no gradient is an error before the first update, by name.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::error::UnreachedParameters;
use candle_headroom::optim::{Group, LossScale};
use candle_headroom::{
    AccumulatingTrainer, AdamW, AdaptiveTrainer, Error, GradientAccumulator, Loss, Result,
};
use candle_nn::ops::{softmax, softmax_last_dim};
use candle_nn::{
    BatchNorm, Linear, Module, ModuleT, RmsNorm, VarBuilder, VarMap, batch_norm, linear, rms_norm,
};

use crate::support::{flat, settle, snapshot, wave};

/// What lies between the first layers and the loss.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// Differentiable operations only.
    Nothing,
    Softmax,
    RmsNorm,
    Detach,
    /// The forward pass leaves the first layers out.
    Unused,
}

const FIRST: [&str; 5] = [
    "batch_norm.bias",
    "batch_norm.weight",
    "hidden.bias",
    "hidden.weight",
    "norm.weight",
];

impl Cut {
    const ALL: [Self; 4] = [Self::Softmax, Self::RmsNorm, Self::Detach, Self::Unused];

    /// The parameters that it cuts off.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Nothing => &[],
            Self::Detach => &FIRST[2..4],
            _ => &FIRST,
        }
    }
}

struct Model {
    varmap: VarMap,
    vars: Vec<Var>,
    hidden: Linear,
    batch_norm: BatchNorm,
    norm: RmsNorm,
    head: Linear,
}

impl Model {
    fn new() -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let batch_norm = batch_norm(4, 1e-5, vb.pp("batch_norm")).unwrap();
        let (hidden, head) = (linear(4, 4, vb.pp("hidden")), linear(4, 2, vb.pp("head")));
        let norm = rms_norm(4, 1e-5, vb.pp("norm")).unwrap();
        Self {
            vars: settle(&varmap),
            varmap,
            hidden: hidden.unwrap(),
            batch_norm,
            norm,
            head: head.unwrap(),
        }
    }

    fn loss(&self, x: &Tensor, cut: Cut) -> candle_core::Result<Tensor> {
        let mut y = self.hidden.forward(x)?;
        if let Cut::Detach = cut {
            y = y.detach();
        }
        // Its running statistics change in each forward pass.
        y = self.batch_norm.forward_t(&y, true)?.contiguous()?;
        y = match cut {
            Cut::RmsNorm => self.norm.forward(&y)?,
            _ => self.norm.forward_diff(&y)?,
        };
        y = match cut {
            Cut::Softmax => softmax_last_dim(&y)?,
            Cut::Unused => x.clone(),
            _ => softmax(&y, 1)?,
        };
        self.head.forward(&y)?.sqr()?.mean_all()
    }

    fn adamw(&self) -> AdamW {
        let builder = AdamW::builder(&self.varmap).learning_rate(0.1);
        builder.build().unwrap()
    }

    fn statistics(&self) -> [&Tensor; 2] {
        [
            self.batch_norm.running_mean(),
            self.batch_norm.running_var(),
        ]
    }
}

fn data(samples: usize) -> Tensor {
    let x = wave(samples * 4, 3, DType::F32).unwrap();
    x.reshape((samples, 4)).unwrap()
}

/// A way to train.
trait Trainer: Sized {
    fn new(model: &Model) -> Self;
    /// Does all that belongs to one update.
    fn train(&mut self, model: &Model, cut: Cut) -> Result<()>;
    fn updates(&self) -> u64;
    fn optimizer(&self) -> &AdamW;
}

impl Trainer for AdaptiveTrainer<AdamW> {
    fn new(model: &Model) -> Self {
        let builder = Self::builder(model.adamw()).buffers(model.statistics());
        builder.build().unwrap()
    }
    fn train(&mut self, model: &Model, cut: Cut) -> Result<()> {
        self.step(&data(6), |x, _| model.loss(&x, cut)).map(|_| ())
    }
    fn updates(&self) -> u64 {
        self.updates()
    }
    fn optimizer(&self) -> &AdamW {
        self.optimizer()
    }
}

impl Trainer for AccumulatingTrainer<AdamW> {
    fn new(model: &Model) -> Self {
        let builder = Self::builder(model.adamw(), 2).buffers(model.statistics());
        builder.build().unwrap()
    }
    fn train(&mut self, model: &Model, cut: Cut) -> Result<()> {
        let first = self.step(&data(6), |x, _| model.loss(&x, cut))?;
        assert!(first.is_none());
        let second = self.step(&data(3), |x, _| model.loss(&x, cut));
        if let Err(error) = &second {
            // As any other error of the last batch, it takes the earlier ones along.
            assert!(
                matches!(error, Error::WindowLost(lost) if lost.samples == 6),
                "{error}"
            );
        }
        second.map(|_| ())
    }
    fn updates(&self) -> u64 {
        (**self).updates()
    }
    fn optimizer(&self) -> &AdamW {
        (**self).optimizer()
    }
}

/// Everything that a trainer changes.
fn state<T: Trainer>(model: &Model, trainer: &T) -> (Vec<Vec<f64>>, Vec<Vec<f64>>, u64, u64) {
    let kept = trainer.optimizer().state().unwrap().tensors;
    let progress = trainer.optimizer().progress().unwrap();
    (
        snapshot(&model.vars),
        kept.values().map(flat).collect(),
        progress.steps,
        trainer.updates(),
    )
}

/// The first update fails and changes nothing. A run that goes on with a repaired model equals one that never failed.
fn the_first_update_fails_and_changes_nothing<T: Trainer>() {
    let sound = Model::new();
    let mut trainer = T::new(&sound);
    for _ in 0..3 {
        trainer.train(&sound, Cut::Nothing).unwrap();
    }
    let expected = state(&sound, &trainer);
    for cut in Cut::ALL {
        let model = Model::new();
        let mut trainer = T::new(&model);
        let before = state(&model, &trainer);
        for _ in 0..2 {
            let error = trainer.train(&model, cut).unwrap_err();
            let unreached: &UnreachedParameters = error.downcast_ref().expect("names");
            assert_eq!(unreached.names, cut.names(), "{cut:?}");
            assert_eq!(
                (unreached.trainable(), unreached.updates),
                (7, Some(1)),
                "{cut:?}"
            );
            assert_eq!(state(&model, &trainer), before, "{cut:?}");
        }
        for _ in 0..3 {
            trainer.train(&model, Cut::Nothing).unwrap();
        }
        assert_eq!(state(&model, &trainer), expected, "{cut:?}");
    }
}

#[test]
fn the_first_update_of_an_adaptive_trainer() {
    the_first_update_fails_and_changes_nothing::<AdaptiveTrainer<AdamW>>();
}

#[test]
fn the_first_update_of_an_accumulating_trainer() {
    the_first_update_fails_and_changes_nothing::<AccumulatingTrainer<AdamW>>();
}

/// Without an earlier batch the error is bare.
#[test]
fn the_error_of_a_step_is_typed() {
    let model = Model::new();
    let mut trainer = AdaptiveTrainer::new(&model);
    let error = trainer.train(&model, Cut::Detach).unwrap_err();
    assert!(matches!(&error, Error::UnreachedParameters(_)), "{error}");
    assert!(error.resource_exhausted().is_none());
}

/// An accumulator keeps its window: the update succeeds once another micro-batch has reached what is missing.
#[test]
fn the_first_update_of_an_accumulator_keeps_the_window() {
    let run = |fails: bool| {
        let model = Model::new();
        let mut builder = GradientAccumulator::builder(model.adamw());
        if !fails {
            builder = builder.allow_unreached(["*"]);
        }
        let mut accumulator = builder.build().unwrap();
        accumulator
            .add(model.loss(&data(6), Cut::Softmax).unwrap(), 6)
            .unwrap();
        let before = snapshot(&model.vars);
        for _ in 0..if fails { 2 } else { 0 } {
            let error = accumulator.update().unwrap_err();
            let Error::UnreachedParameters(unreached) = &error else {
                panic!("{error}")
            };
            assert_eq!(unreached.names, FIRST);
            assert_eq!(
                (snapshot(&model.vars), accumulator.samples()),
                (before.clone(), 6)
            );
            assert_eq!(accumulator.optimizer().progress().unwrap().steps, 0);
        }
        accumulator
            .add(model.loss(&data(3), Cut::Nothing).unwrap(), 3)
            .unwrap();
        let report = accumulator.update().unwrap().expect("two micro-batches");
        assert_eq!((report.step, report.samples), (1, 9));
        snapshot(&model.vars)
    };
    assert_eq!(run(true), run(false));
}

/// Batches that were accumulated one by one are kept too.
#[test]
fn an_update_of_accumulated_batches_keeps_them() {
    let model = Model::new();
    let mut trainer = AdaptiveTrainer::new(&model);
    trainer
        .accumulate(&data(6), |x, _| model.loss(&x, Cut::RmsNorm))
        .unwrap();
    let before = snapshot(&model.vars);
    let error = trainer.update().unwrap_err();
    assert!(matches!(&error, Error::UnreachedParameters(_)), "{error}");
    assert_eq!((trainer.samples(), trainer.updates()), (6, 0));
    assert_eq!(snapshot(&model.vars), before);
    trainer
        .accumulate(&data(3), |x, _| model.loss(&x, Cut::Nothing))
        .unwrap();
    assert_eq!(trainer.update().unwrap().unwrap().samples, 9);
}

/// After the check has passed, an update need not reach everything.
#[test]
fn later_updates_are_not_checked() {
    let model = Model::new();
    let mut trainer = AdaptiveTrainer::new(&model);
    trainer.train(&model, Cut::Nothing).unwrap();
    for cut in Cut::ALL {
        trainer.train(&model, cut).unwrap();
    }
    // An update that reaches nothing at all is an error at any time.
    let error = trainer.step(&data(2), |x, _| x.sum_all()).unwrap_err();
    assert!(matches!(&error, Error::Loss(_)), "{error}");
    assert_eq!(trainer.updates(), 5);
}

/// Three experts, of which a batch uses some.
struct Experts {
    varmap: VarMap,
    experts: Vec<Linear>,
}

impl Experts {
    fn new() -> Self {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
        let experts = (0..3).map(|i| linear(4, 4, vb.pp(format!("experts.{i}"))).unwrap());
        let experts = experts.collect();
        settle(&varmap);
        Self { varmap, experts }
    }

    fn trainer(&self, updates: Option<usize>) -> AdaptiveTrainer<AdamW> {
        let builder = AdaptiveTrainer::builder(AdamW::builder(&self.varmap).build().unwrap());
        let builder = match updates {
            Some(updates) => builder.reach_within(updates),
            None => builder,
        };
        builder.build().unwrap()
    }

    fn step(&self, trainer: &mut AdaptiveTrainer<AdamW>, used: &[usize]) -> Result<()> {
        let step = trainer.step(&data(4), |x, _| {
            let mut loss = Tensor::zeros((), DType::F32, &Device::Cpu)?;
            for &expert in used {
                loss = (loss + self.experts[expert].forward(&x)?.sqr()?.mean_all()?)?;
            }
            Ok(loss)
        });
        step.map(|_| ())
    }
}

fn names(error: &Error) -> Vec<&str> {
    let unreached: &UnreachedParameters = error.downcast_ref().expect("unreached parameters");
    unreached.names.iter().map(String::as_str).collect()
}

#[test]
fn experts_may_be_reached_in_different_updates() {
    let experts = Experts::new();
    let mut trainer = experts.trainer(None);
    let error = experts.step(&mut trainer, &[0, 2]).unwrap_err();
    assert_eq!(names(&error), ["experts.1.bias", "experts.1.weight"]);

    let mut trainer = experts.trainer(Some(3));
    for expert in [0, 1, 2, 0, 0] {
        experts.step(&mut trainer, &[expert]).unwrap();
    }

    // The last of the updates fails, those before it have been applied.
    let mut trainer = experts.trainer(Some(3));
    experts.step(&mut trainer, &[0]).unwrap();
    experts.step(&mut trainer, &[1]).unwrap();
    let error = experts.step(&mut trainer, &[0, 1]).unwrap_err();
    assert_eq!(names(&error), ["experts.2.bias", "experts.2.weight"]);
    assert!(
        error.to_string().contains("in their first 3 updates"),
        "{error}"
    );
    assert_eq!(trainer.updates(), 2);
    experts.step(&mut trainer, &[2]).unwrap();
    assert_eq!(trainer.updates(), 3);
}

/// What a failed update reached does not count: in the update that is applied it has to arrive.
#[test]
fn a_failed_update_reaches_nothing() {
    let experts = Experts::new();
    let mut trainer = experts.trainer(None);
    experts.step(&mut trainer, &[0, 1]).unwrap_err();
    let error = experts.step(&mut trainer, &[1, 2]).unwrap_err();
    assert_eq!(names(&error), ["experts.0.bias", "experts.0.weight"]);
    experts.step(&mut trainer, &[0, 1, 2]).unwrap();
}

#[test]
fn thawed_parameters_are_checked_in_their_first_update() {
    let model = Model::new();
    let (head, rest) = Group::from(&model.varmap).partition(|name, _| name.starts_with("head"));
    let builder = AdamW::builder(head).group(rest.frozen());
    let mut trainer = AdaptiveTrainer::builder(builder.build().unwrap())
        .build()
        .unwrap();
    let freeze = |trainer: &mut AdaptiveTrainer<AdamW>, frozen: bool| {
        let options = trainer.optimizer().groups()[1].frozen(frozen);
        trainer.optimizer_mut().set_group(1, options).unwrap();
    };
    trainer.train(&model, Cut::Softmax).unwrap();
    freeze(&mut trainer, false);
    let error = trainer.train(&model, Cut::Softmax).unwrap_err();
    assert_eq!(names(&error), FIRST);
    trainer.train(&model, Cut::Nothing).unwrap();
    trainer.train(&model, Cut::Softmax).unwrap();
    // Frozen and thawed again, they are checked again.
    freeze(&mut trainer, true);
    trainer.train(&model, Cut::Softmax).unwrap();
    freeze(&mut trainer, false);
    trainer.train(&model, Cut::Softmax).unwrap_err();
}

#[test]
fn another_optimizers_parameters_are_checked_in_their_first_update() {
    let (model, other) = (Model::new(), Model::new());
    let mut trainer = AdaptiveTrainer::new(&model);
    trainer.train(&model, Cut::Nothing).unwrap();
    // The same Vars have been reached already.
    trainer.replace_optimizer(model.adamw());
    trainer.train(&model, Cut::Softmax).unwrap();
    trainer.replace_optimizer(other.adamw());
    let error = trainer.train(&other, Cut::Softmax).unwrap_err();
    assert_eq!(names(&error), FIRST);
}

#[test]
fn a_batch_without_weight_is_not_checked() {
    let model = Model::new();
    let mut trainer = AdaptiveTrainer::new(&model);
    let report = trainer.step(&data(2), |x, _| {
        Ok(Loss::sum(model.loss(&x, Cut::Softmax)?, 0.))
    });
    assert_eq!(report.unwrap().updated, Some(false));
    trainer.train(&model, Cut::Softmax).unwrap_err();
}

/// Gradients that are not finite, because the loss scale was too large, have arrived: the optimizer skips the update, which counts.
#[test]
fn an_overflow_is_a_gradient() {
    let vars: Vec<_> = (0..2)
        .map(|_| Var::ones(3, DType::F16, &Device::Cpu).unwrap())
        .collect();
    let optimizer = AdamW::builder(vars.clone()).loss_scale(LossScale::dynamic().initial(1e9));
    let mut trainer = AdaptiveTrainer::builder(optimizer.build().unwrap())
        .build()
        .unwrap();
    let x = Tensor::ones((4, 3), DType::F16, &Device::Cpu).unwrap();
    let mut step = |used: &[Var]| {
        trainer.step(&x, |x, _| {
            let mut y = x;
            for var in used {
                y = y.broadcast_mul(var)?;
            }
            y.to_dtype(DType::F32)?.sum(1)?.mean_all()
        })
    };
    assert_eq!(names(&step(&vars[..1]).unwrap_err()), ["1"]);
    assert_eq!(step(&vars).unwrap().updated, Some(false));
    step(&vars[..1]).unwrap();
}

/// A unit that is dead for this batch has a gradient of zeros.
#[test]
fn zeros_are_a_gradient() {
    let w = Var::new(&[-1f32, -2.], &Device::Cpu).unwrap();
    let before = flat(&w);
    let optimizer = AdamW::builder(vec![("w", w.clone())]).weight_decay(0.);
    let mut trainer = AdaptiveTrainer::builder(optimizer.build().unwrap())
        .build()
        .unwrap();
    let x = Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap();
    let report = trainer.step(&x, |x, _| x.broadcast_mul(&w)?.relu()?.mean_all());
    assert_eq!(report.unwrap().updated, Some(true));
    assert_eq!(flat(&w), before);
}
