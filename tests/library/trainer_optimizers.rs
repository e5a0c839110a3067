//! Trainers with this crate's optimizers: loss scales, skipped updates, and sums in f32.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::optim::{Commit, LossScale, StateDict};
use candle_headroom::{AccumulatingTrainer, AdamW, AdaptiveTrainer, Sgd};

use crate::support::{Mlp, distance, flat};

/// A model of f16 with a tiny loss: without a scale its gradients vanish.
struct Faint {
    w: Var,
}

impl Faint {
    fn new() -> Self {
        let w = Var::new(&[1f32, -2., 3.], &Device::Cpu).unwrap();
        let w = w.to_dtype(DType::F16).unwrap();
        Self {
            w: Var::from_tensor(&w).unwrap(),
        }
    }

    /// Its gradient is `1e-9 · x`, far below f16's smallest number.
    fn loss(&self, x: &Tensor) -> Result<Tensor> {
        let products = x.broadcast_mul(&self.w)?.to_dtype(DType::F32)?;
        products.sum(1)?.mean_all()? * 1e-9
    }
}

#[test]
fn a_loss_scale_saves_faint_gradients_and_is_not_in_the_report() {
    let x = Tensor::ones((8, 3), DType::F16, &Device::Cpu).unwrap();
    let run = |scale: Option<LossScale>| {
        let model = Faint::new();
        let mut builder = Sgd::builder(vec![model.w.clone()]).learning_rate(1e8);
        if let Some(scale) = scale {
            builder = builder.loss_scale(scale);
        }
        let optimizer = builder.build().unwrap();
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .policy(Fixed::new(3).unwrap())
            .build()
            .unwrap();
        let report = trainer.step(&x, |x, _| model.loss(&x)).unwrap();
        (flat(&model.w), report.loss.read().unwrap())
    };
    let (still, loss) = run(None);
    assert_eq!(still, [1., -2., 3.], "without a scale nothing moves");
    let (moved, scaled) = run(Some(LossScale::fixed(65536.)));
    assert_eq!(loss, scaled);
    assert!((scaled / 2e-9 - 1.).abs() < 1e-2, "{scaled}");
    let expected = [0.9, -2.1, 2.9];
    for (moved, expected) in moved.iter().zip(expected) {
        assert!((moved - expected).abs() < 2e-3, "{moved} and {expected}");
    }
}

#[test]
fn an_overflow_is_skipped_and_the_scale_falls() {
    let model = Faint::new();
    let optimizer = Sgd::builder(vec![model.w.clone()])
        .learning_rate(1.)
        .loss_scale(LossScale::dynamic().initial(1e9))
        .build()
        .unwrap();
    let mut trainer = AccumulatingTrainer::builder(optimizer, 1).build().unwrap();
    let x = Tensor::ones((4, 3), DType::F16, &Device::Cpu).unwrap();
    let loss = |x: Tensor| {
        x.broadcast_mul(&model.w)?
            .to_dtype(DType::F32)?
            .sum(1)?
            .mean_all()
    };
    let before = flat(&model.w);
    trainer.step(&x, |x, _| loss(x)).unwrap();
    assert_eq!(flat(&model.w), before);
    let progress = trainer.optimizer().progress().unwrap();
    assert_eq!((progress.steps, progress.skipped), (0, 1));
    assert_eq!(progress.loss_scale, Some(5e8));
}

/// Gradients of f16 and bf16 parameters are accumulated in f32 and reach the optimizer without rounding.
#[test]
fn sums_are_not_rounded_before_the_update() {
    let run = |size: usize| {
        let model = Mlp::new(DType::BF16);
        let (x, y) = Mlp::data(64, DType::BF16);
        let optimizer = AdamW::builder(&model.varmap)
            .learning_rate(0.01)
            .master_weights()
            .build()
            .unwrap();
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .policy(Fixed::new(size).unwrap())
            .build()
            .unwrap();
        let data = (x, y);
        for _ in 0..5 {
            trainer.step(&data, |(x, y), _| model.loss(&x, &y)).unwrap();
        }
        let state = trainer.optimizer().state().unwrap();
        let masters = state
            .tensors
            .iter()
            .filter(|(name, _)| name.ends_with("master"));
        masters.map(|(_, tensor)| flat(tensor)).collect::<Vec<_>>()
    };
    // bf16 has 8 bits. The gradients differ by its rounding, the master weights by much less.
    let distance = distance(&run(8), &run(64));
    assert!(distance < 0.02, "{distance}");
}

/// An optimizer that is chosen at run time trains as the one in the box: its loss scale, its f32 sums and its state are not lost.
#[test]
fn a_boxed_optimizer_is_the_one_in_the_box() {
    fn train<O: Commit>(w: &Var, optimizer: O) -> (Vec<f64>, StateDict) {
        let mut trainer = AdaptiveTrainer::builder(optimizer)
            .policy(Fixed::new(3).unwrap())
            .build()
            .unwrap();
        let x = Tensor::ones((8, 3), DType::F16, &Device::Cpu).unwrap();
        for _ in 0..3 {
            let loss = |x: Tensor| {
                x.broadcast_mul(w)?
                    .to_dtype(DType::F32)?
                    .sum(1)?
                    .mean_all()?
                    * 1e-9
            };
            trainer.step(&x, |x, _| loss(x)).unwrap();
        }
        let state = trainer.optimizer().state().unwrap();
        (flat(w), state)
    }
    let build = || {
        let model = Faint::new();
        let builder = AdamW::builder(vec![("w", model.w.clone())]).learning_rate(0.1);
        let optimizer = builder.loss_scale(LossScale::dynamic()).master_weights();
        (model.w, optimizer.build().unwrap())
    };
    let (w, plain) = build();
    let (expected, state) = train(&w, plain);
    let (w, boxed) = build();
    let (found, kept) = train(&w, Box::new(boxed) as Box<dyn Commit>);
    assert_ne!(found, [1., -2., 3.]);
    assert_eq!(found, expected);
    assert_eq!(kept.metadata, state.metadata);
    assert!(kept.tensors.keys().eq(state.tensors.keys()) && !kept.tensors.is_empty());
}
