//! Which updates are checked, and what counts as a gradient.

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::error::UnreachedParameters;
use candle_headroom::optim::{Group, LossScale};
use candle_headroom::{AdamW, AdaptiveTrainer, Error, Loss, Result};
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear};

use super::{Cut, FIRST, Model, Trainer, data};
use crate::support::{flat, settle};

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
    assert!(error.is_loss(), "{error}");
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
