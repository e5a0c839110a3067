//! What a panic that the caller catches leaves behind, in the closure and in the update.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::backprop::GradStore;
use candle_core::{Device, Var};
use candle_headroom::batch::Fixed;
use candle_headroom::optim::Both;
use candle_headroom::{
    AccumulatingTrainer, AdaptiveTrainer, Error, Foreign, GradientAccumulator, Sgd,
};
use candle_nn::Optimizer;

use super::{distance, numbers, sgd, value};

/// A caught panic leaves parameters, buffers and the window as they were before the batch.
#[test]
fn a_panic_in_the_closure_leaves_no_trace() {
    for panic_at in [0, 1, 2] {
        let w = Var::new(&[0f32], &Device::Cpu).unwrap();
        let statistics = Var::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let builder = AdaptiveTrainer::builder(sgd(&w)).buffers([statistics.as_tensor()]);
        let mut trainer = builder.policy(Fixed::new(1).unwrap()).build().unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            trainer.step(&numbers(&[1., 1., 1.]), |x, micro| {
                statistics.set(&(statistics.as_tensor() * 2.)?)?;
                assert!(micro.index != panic_at, "the closure's own panic");
                distance(&w, &x)
            })
        }));
        assert!(caught.is_err());
        assert_eq!(statistics.to_vec1::<f32>().unwrap(), [1., 2.]);
        assert_eq!((value(&w), trainer.samples()), (0., 0));
        let report = trainer
            .step(&numbers(&[4.]), |x, _| distance(&w, &x))
            .unwrap();
        assert_eq!((report.samples, value(&w)), (1, 2.));
    }
}

/// A panic half-way through a batch loses the batches accumulated before it. The next call returns that once.
#[test]
fn a_panic_half_way_reports_the_lost_batches() {
    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let builder = AdaptiveTrainer::builder(sgd(&w)).policy(Fixed::new(1).unwrap());
    let mut trainer = builder.build().unwrap();
    let accumulate = |trainer: &mut AdaptiveTrainer<Sgd>, panic_at| {
        catch_unwind(AssertUnwindSafe(|| {
            trainer.accumulate(&numbers(&[2., 4.]), |x, micro| {
                assert!(micro.index != panic_at, "the closure's own panic");
                distance(&w, &x)
            })
        }))
    };
    accumulate(&mut trainer, 9).unwrap().unwrap();
    assert!(accumulate(&mut trainer, 0).is_err());
    assert_eq!(
        trainer.samples(),
        2,
        "nothing of the second batch was added"
    );
    assert!(accumulate(&mut trainer, 1).is_err());
    assert_eq!(trainer.samples(), 0);
    let Err(Error::WindowLost(lost)) = trainer.update() else {
        panic!("the loss is reported")
    };
    assert_eq!(lost.samples, 2);
    assert!(trainer.update().unwrap().is_none(), "once");

    // An accumulating trainer counts its batches from the beginning again.
    let builder = AccumulatingTrainer::builder(sgd(&w), 2).policy(Fixed::new(1).unwrap());
    let mut trainer = builder.build().unwrap();
    let mut step = |panic_at| {
        catch_unwind(AssertUnwindSafe(|| {
            trainer.step(&numbers(&[2., 4.]), |x, micro| {
                assert!(micro.index != panic_at, "the closure's own panic");
                distance(&w, &x)
            })
        }))
    };
    assert!(step(9).unwrap().unwrap().is_none());
    assert!(step(1).is_err());
    assert!(matches!(step(9).unwrap(), Err(Error::WindowLost(_))));
    assert!(step(9).unwrap().unwrap().is_none(), "a new window");
    let report = step(9).unwrap().unwrap().expect("two batches");
    assert_eq!(report.samples, 4);
}

/// Moves its Var and panics.
struct Moves(Var);

impl Optimizer for Moves {
    type Config = ();

    fn new(vars: Vec<Var>, (): ()) -> candle_core::Result<Self> {
        Ok(Self(vars[0].clone()))
    }

    fn step(&mut self, _: &GradStore) -> candle_core::Result<()> {
        self.0.set(&(self.0.as_tensor() + 1.)?)?;
        panic!("half-way")
    }

    fn learning_rate(&self) -> f64 {
        0.
    }

    fn set_learning_rate(&mut self, _: f64) {}
}

/// Some parameters may have moved, so the update is neither repeated nor taken for one that did not begin.
#[test]
fn a_panic_in_the_update_is_an_interrupted_one() {
    let is_interrupted =
        |error: Error| matches!(error, Error::UpdateInterrupted(by) if by.reason.is_none());
    let caught = |work: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(work)).is_err();
    for (accumulates, steps) in [(false, true), (true, true), (true, false)] {
        let w = Var::new(&[0f32], &Device::Cpu).unwrap();
        let foreign = |w: &Var| Foreign::new(Moves(w.clone()), vec![w.clone()]);
        let mut trainer = AdaptiveTrainer::builder(foreign(&w)).build().unwrap();
        let batch = numbers(&[1., 1., 1.]);
        if accumulates {
            trainer.accumulate(&batch, |x, _| distance(&w, &x)).unwrap();
        }
        assert!(caught(&mut || match steps {
            true => drop(trainer.step(&batch, |x, _| distance(&w, &x))),
            false => drop(trainer.update()),
        }));
        assert!(is_interrupted(trainer.update().unwrap_err()));
        let step = trainer.step(&batch, |x, _| distance(&w, &x));
        assert!(is_interrupted(step.unwrap_err()));
        assert_eq!(value(&w), 1., "moved once");

        trainer.replace_optimizer(foreign(&w));
        assert!(trainer.update().unwrap().is_none(), "nothing is left of it");
    }

    let w = Var::new(&[0f32], &Device::Cpu).unwrap();
    let optimizer = Foreign::new(Moves(w.clone()), vec![w.clone()]);
    let mut accumulator = GradientAccumulator::builder(optimizer).build().unwrap();
    accumulator
        .add(w.sqr().unwrap().mean_all().unwrap(), 1)
        .unwrap();
    assert!(caught(&mut || drop(accumulator.update())));
    assert!(is_interrupted(accumulator.update().unwrap_err()));
    assert_eq!(value(&w), 1., "moved once");
}

/// What is loaded puts back one of two optimizers; what the other one keeps is from half an update.
#[test]
fn loading_half_of_an_optimizer_does_not_end_an_interruption() {
    let [v, w] = [1f32, 0.].map(|start| Var::new(&[start], &Device::Cpu).unwrap());
    let first = Sgd::builder(vec![("v", v.clone())]).learning_rate(0.5);
    let second = Foreign::new(Moves(w.clone()), vec![w.clone()]);
    let both = Both::new(("first", first.build().unwrap()), ("second", second)).unwrap();
    let mut trainer = AdaptiveTrainer::builder(both).build().unwrap();
    let saved = trainer.state().unwrap();
    let batch = numbers(&[1., 1., 1.]);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        drop(trainer.step(&batch, |x, _| distance(&v, &x)? + distance(&w, &x)?));
    }));
    assert!(caught.is_err());
    trainer.load_state(&saved).unwrap();
    let error = trainer.step(&batch, |x, _| distance(&v, &x)).unwrap_err();
    assert!(matches!(error, Error::UpdateInterrupted(_)), "{error}");
}
