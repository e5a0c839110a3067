//! What a loop gives to a trainer, and what it gets back: items of loaders, second outputs, errors of its own, losses without gradients.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use candle_core::{DType, Device, Result as CandleResult, Tensor, Var};
use candle_headroom::batch::{Fixed, Halving, impl_batch};
use candle_headroom::error::Phase;
use candle_headroom::testing::{Faults, illegal_address, out_of_memory};
use candle_headroom::{AccumulatingTrainer, AdaptiveTrainer, Error, Loss, Sgd};

use crate::support::flat;

fn w() -> Var {
    Var::new(&[0f32], &Device::Cpu).unwrap()
}

fn sgd(w: &Var) -> Sgd {
    let builder = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.5);
    builder.build().unwrap()
}

fn trainer(w: &Var) -> AdaptiveTrainer<Sgd> {
    AdaptiveTrainer::builder(sgd(w)).build().unwrap()
}

fn numbers(numbers: &[f32]) -> Tensor {
    Tensor::new(numbers, &Device::Cpu).unwrap()
}

fn damaged() -> Result<Tensor, io::Error> {
    Err(io::Error::new(io::ErrorKind::InvalidData, "damaged"))
}

/// Moves `w` towards the mean of what it sees.
fn distance(w: &Var, x: &Tensor) -> CandleResult<Tensor> {
    (x.broadcast_sub(w)?.sqr()?.mean_all()? / 2.)?.reshape(())
}

fn is_damaged(error: &Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
}

#[test]
fn a_step_takes_an_item_as_it_comes() {
    let w = w();
    let mut trainer = trainer(&w);
    let items = [Ok(numbers(&[1., 3.])), damaged(), Ok(numbers(&[5.]))];
    let steps = items.map(|item| trainer.step(item, |x, _| distance(&w, &x)));
    let [first, failed, last] = steps;
    assert_eq!(first.unwrap().samples, 2);
    assert!(is_damaged(&failed.unwrap_err()));
    assert_eq!(last.unwrap().step, 2);
    // 0 to 2 by half, then 1 to 5 by half.
    assert_eq!(flat(&w), [3.]);
    assert_eq!(trainer.updates(), 2);
}

/// A candle error, and one of this crate, come back as they are.
#[test]
fn an_items_own_error_keeps_its_class() {
    let w = w();
    let mut trainer = trainer(&w);
    let lost: CandleResult<Tensor> = Err(illegal_address());
    let error = trainer.step(lost, |x, _| distance(&w, &x)).unwrap_err();
    assert!(error.device_fault().is_some(), "{error}");
    let own: candle_headroom::Result<Tensor> = Err(Error::from(out_of_memory()));
    let mut called = false;
    let error = trainer.step(own, |x, _| {
        called = true;
        distance(&w, &x)
    });
    assert!(error.unwrap_err().resource_exhausted().is_some());
    assert!(!called);
}

#[test]
fn an_item_that_failed_leaves_the_window_as_it_was() {
    let w = w();
    let mut trainer = trainer(&w);
    trainer
        .accumulate(Ok::<_, io::Error>(numbers(&[2.])), |x, _| distance(&w, &x))
        .unwrap();
    let failed = trainer.accumulate(damaged(), |x, _| distance(&w, &x));
    assert!(is_damaged(&failed.unwrap_err()));
    let failed = trainer.step(damaged(), |x, _| distance(&w, &x));
    assert!(is_damaged(&failed.unwrap_err()));
    assert_eq!((trainer.pending(), trainer.samples()), (1, 1));
    let report = trainer.step(&numbers(&[6.]), |x, _| distance(&w, &x));
    assert_eq!(report.unwrap().samples, 2);
    assert_eq!(flat(&w), [2.]);
}

#[test]
fn an_accumulating_trainer_counts_no_item_that_failed() {
    let w = w();
    let mut trainer = AccumulatingTrainer::builder(sgd(&w), 2).build().unwrap();
    let mut step = |item: Result<Tensor, io::Error>| {
        let done = trainer.step_with(item, |x, _| Ok((distance(&w, &x)?, x.dim(0)?)));
        done.map(|(report, outputs)| (report.map(|it| it.samples), outputs))
    };
    assert_eq!(step(Ok(numbers(&[2., 4.]))).unwrap(), (None, vec![2]));
    assert!(is_damaged(&step(damaged()).unwrap_err()));
    assert_eq!(step(Ok(numbers(&[6.]))).unwrap(), (Some(3), vec![1]));
    assert_eq!(flat(&w), [2.]);
}

/// An output that knows how many are alive.
struct Output {
    samples: Vec<f32>,
    alive: Rc<Cell<usize>>,
}

impl Output {
    fn new(x: &Tensor, alive: &Rc<Cell<usize>>) -> Self {
        alive.set(alive.get() + 1);
        Self {
            samples: x.to_vec1().unwrap(),
            alive: Rc::clone(alive),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

/// Whatever fails, each sample is in one output, in order, and those of failed attempts are gone before the next attempt.
#[test]
fn outputs_are_those_of_finished_micro_batches() {
    let x = Tensor::arange(0f32, 7., &Device::Cpu).unwrap();
    for phase in [Phase::Forward, Phase::Backward, Phase::Accumulate] {
        for point in 0..6 {
            let (a, b) = (w(), w());
            let optimizer = Sgd::builder(vec![a.clone(), b.clone()]).build().unwrap();
            let builder = AdaptiveTrainer::builder(optimizer).policy(Fixed::new(2).unwrap());
            let mut trainer = builder.build().unwrap();
            let alive = Rc::new(Cell::new(0));
            let _armed = Faults::in_phase(phase, point).arm();
            let done = trainer.step_with(&x, |x, micro| {
                if !micro.is_check() {
                    assert_eq!(alive.get(), micro.index, "{phase:?} {point}");
                }
                let loss = x.broadcast_sub(&a)?.sqr()?.mean_all()?;
                let loss = (loss + x.broadcast_add(&b)?.sqr()?.mean_all()?)?;
                Ok((loss, Output::new(&x, &alive)))
            });
            // With a fixed size, what fails a second time is final.
            let Ok((report, outputs)) = done else {
                assert_eq!(alive.get(), 0);
                continue;
            };
            let sizes = outputs.iter().map(|output| output.samples.len());
            assert!(sizes.eq(report.sizes.iter().copied()));
            let all: Vec<_> = outputs.iter().flat_map(|it| it.samples.clone()).collect();
            assert_eq!(all, [0., 1., 2., 3., 4., 5., 6.], "{phase:?} {point}");
            assert_eq!(alive.get(), outputs.len());
        }
    }
}

#[test]
fn outputs_follow_the_sizes_that_fit() {
    let w = w();
    let builder = AdaptiveTrainer::builder(sgd(&w)).policy(Halving::default());
    let mut trainer = builder.build().unwrap();
    let x = Tensor::arange(0f32, 10., &Device::Cpu).unwrap();
    let (report, outputs) = trainer
        .step_with(&x, |x, micro| match x.dim(0)? > 3 {
            true => Err(out_of_memory()),
            false => Ok((distance(&w, &x)?, micro.samples.clone())),
        })
        .unwrap();
    assert_eq!(report.sizes, [2; 5]);
    assert_eq!(outputs, [0..2, 2..4, 4..6, 6..8, 8..10]);
    assert_eq!(report.retries, 2);
}

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("text {0} is empty")]
struct Empty(usize);

#[test]
fn an_error_of_any_type_comes_back_as_it_was() {
    let w = w();
    let mut trainer = trainer(&w);
    let x = numbers(&[1., 2., 3., 4.]);
    let failed = trainer.try_step_as(
        &x,
        |_, _| -> anyhow::Result<Tensor> {
            Err(anyhow::Error::new(Empty(3)).context("reading texts"))
        },
        |error| error.as_ref(),
    );
    let error = failed.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Empty(3)));
    assert_eq!(format!("{error:#}"), "reading texts: text 3 is empty");
    // An exhaustion within is found and retried.
    let report = trainer.try_step_as(
        &x,
        |x, _| -> anyhow::Result<Tensor> {
            anyhow::ensure!(x.dim(0)? <= 2, out_of_memory());
            Ok(distance(&w, &x)?)
        },
        |error| error.as_ref(),
    );
    assert_eq!(report.unwrap().sizes, [2, 2]);
    // One that ends the step is returned converted.
    let failed = trainer.try_step_as(
        &x,
        |_, _| -> anyhow::Result<Tensor> { Err(out_of_memory().into()) },
        |error| error.as_ref(),
    );
    let error = failed.unwrap_err();
    let own = error.downcast_ref::<Error>().expect("this crate's");
    assert!(own.resource_exhausted().is_some());
    assert_eq!(trainer.updates(), 1);
}

#[test]
fn an_error_of_an_accumulating_trainer_comes_back_too() {
    let w = w();
    let mut trainer = AccumulatingTrainer::builder(sgd(&w), 2).build().unwrap();
    let failed = trainer.try_step_as(
        &numbers(&[1.]),
        |_, _| -> anyhow::Result<Tensor> { Err(Empty(7).into()) },
        |error| error.as_ref(),
    );
    assert_eq!(failed.unwrap_err().downcast_ref(), Some(&Empty(7)));
}

/// The mean of what is above 2, with its number as the weight; NaN without any.
fn weighted(x: &Tensor) -> CandleResult<Loss> {
    let kept = x.gt(2f32)?.to_dtype(DType::F32)?;
    let count = f64::from(kept.sum_all()?.to_scalar::<f32>()?);
    let sum = (kept * x)?.sum_all()?;
    Ok(Loss::weighted_mean((sum / count)?, count))
}

#[test]
fn a_loss_is_evaluated_as_it_is_trained() {
    let w = w();
    let mut trainer = trainer(&w);
    let batches = [numbers(&[1., 2., 3.]), numbers(&[6.])];
    let mean = trainer
        .evaluate_loss(&batches, |x, _| distance(&w, &x))
        .unwrap();
    assert!((mean - 50. / 8.).abs() < 1e-6, "{mean}");
    // By weights, as `Loss` has them; NaN of weight 0 does not count.
    let items = [
        Ok(numbers(&[1., 2., 3.])),
        Ok::<_, io::Error>(numbers(&[6., 2., 4.])),
        Ok(numbers(&[1.])),
    ];
    let mean = trainer.evaluate_loss(items, |x, _| weighted(&x)).unwrap();
    assert!((mean - 13. / 3.).abs() < 1e-6, "{mean}");
    // What does not fit is cut.
    let x = Tensor::arange(0f32, 10., &Device::Cpu).unwrap();
    let mut called = 0;
    let mean = trainer.evaluate_loss([&x], |x, _| {
        called += 1;
        match x.dim(0)? > 3 {
            true => Err(out_of_memory()),
            false => x.mean_all(),
        }
    });
    assert_eq!(mean.unwrap(), 4.5);
    assert!(called > 4);
    // Nothing was trained.
    assert_eq!((trainer.updates(), trainer.samples()), (0, 0));
    assert_eq!(flat(&w), [0.]);
}

#[test]
fn an_evaluation_without_a_loss_says_so() {
    let w = w();
    let mut trainer = trainer(&w);
    let none: [&Tensor; 0] = [];
    let mean = trainer.evaluate_loss(none, |x, _| distance(&w, &x));
    assert!(mean.unwrap().is_nan());
    let error = trainer.evaluate_loss([&numbers(&[1., 2.])], |x, _| Ok(x));
    let error = error.unwrap_err();
    assert!(error.is_loss(), "{error}");
    let items = [Ok(numbers(&[1.])), damaged()];
    let error = trainer.evaluate_loss(items, |x, _| distance(&w, &x));
    assert!(is_damaged(&error.unwrap_err()));
}

struct Texts {
    tokens: Tensor,
    mask: Option<Tensor>,
}

impl_batch!(Texts { tokens, mask });

#[test]
fn a_struct_of_tensors_is_cut_field_by_field() {
    let w = w();
    let builder = AdaptiveTrainer::builder(sgd(&w)).policy(Fixed::new(2).unwrap());
    let mut trainer = builder.build().unwrap();
    let tokens = numbers(&[1., 2., 3.]);
    for mask in [None, Some(tokens.ones_like().unwrap())] {
        let texts = Texts {
            tokens: tokens.clone(),
            mask,
        };
        let report = trainer.step(&texts, |texts, micro| {
            let len = micro.samples.len();
            let masked = texts.mask.map_or(Ok(len), |mask| mask.dim(0))?;
            assert_eq!((texts.tokens.dim(0)?, masked), (len, len));
            distance(&w, &texts.tokens)
        });
        assert_eq!(report.unwrap().sizes, [2, 1]);
    }
}
