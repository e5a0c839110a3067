//! What trainers save after an interrupted update, a lost window, and while parameters await their first gradient.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Consumer, Fixed};
use candle_headroom::data::{Items, Loader};
use candle_headroom::error::{BoxedError, UpdateInterrupted};
use candle_headroom::optim::{Commit, Committed, Group, Parameter, StateDict};
use candle_headroom::train::{Resumable, StepReport};
use candle_headroom::{AccumulatingTrainer, AdamW, AdaptiveTrainer, Error, Foreign, Result, Sgd};
use candle_nn::Optimizer;

use super::*;
use crate::support::flat;

/// AdamW that can stop in the middle of an update.
struct Stopping {
    inner: AdamW,
    stops: bool,
}

impl Commit for Stopping {
    fn parameters(&self) -> &[Parameter] {
        Commit::parameters(&self.inner)
    }

    fn commit(&mut self, gradients: &GradStore) -> Result<Committed> {
        let committed = self.inner.commit(gradients)?;
        match self.stops {
            true => Err(UpdateInterrupted::new(None).into()),
            false => Ok(committed),
        }
    }

    fn state(&self) -> Result<StateDict> {
        Commit::state(&self.inner)
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        Commit::load_state(&mut self.inner, state)
    }
}

fn ones() -> Tensor {
    Tensor::ones((4, 2), DType::F32, &Device::Cpu).unwrap()
}

fn step<O: Commit>(trainer: &mut AdaptiveTrainer<O>, w: &Var) -> Result<StepReport> {
    trainer.step(&ones(), |x, _| x.broadcast_mul(w)?.sqr()?.mean_all())
}

#[test]
fn half_an_update_is_not_saved_and_resuming_undoes_it() {
    let (_temporary, folder) = folder();
    let w = Var::ones(2, DType::F32, &Device::Cpu).unwrap();
    let inner = AdamW::builder(vec![("w", w.clone())]).learning_rate(0.1);
    let (inner, stops) = (inner.build().unwrap(), false);
    let builder = AdaptiveTrainer::builder(Stopping { inner, stops });
    let mut trainer = builder.build().unwrap();
    let mut checkpoints = Checkpoints::builder(&folder)
        .every_updates(1)
        .open()
        .unwrap();
    let report = step(&mut trainer, &w).unwrap();
    checkpoints.save_now(&trainer).unwrap();
    let saved = (
        flat(&w),
        flat(&trainer.state().unwrap().tensors["w.exp_avg"]),
    );
    step(&mut trainer, &w).unwrap();
    let whole = flat(&w);

    trainer.optimizer_mut().stops = true;
    let error = step(&mut trainer, &w).unwrap_err();
    assert!(matches!(error, Error::UpdateInterrupted(_)), "{error}");
    for refused in [
        trainer.state().map(|_| ()),
        checkpoints.save_now(&trainer).map(|_| ()),
        checkpoints.after(&report, &trainer).map(|_| ()),
        step(&mut trainer, &w).map(|_| ()),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::UpdateInterrupted(_)), "{error}");
        assert!(
            error.to_string().contains("resume from a checkpoint"),
            "{error}"
        );
    }
    assert_eq!(names(&folder), ["step-000000001"]);

    trainer.optimizer_mut().stops = false;
    checkpoints.resume_trainer(&mut trainer).unwrap().unwrap();
    let moments = flat(&trainer.state().unwrap().tensors["w.exp_avg"]);
    assert_eq!((flat(&w), moments), saved);
    step(&mut trainer, &w).unwrap();
    assert_eq!((flat(&w), trainer.updates()), (whole, 2));
}

/// The last parameter cannot be read. A trainer that has a step to lose gets its values back; a new one has no copy of what it had.
#[test]
fn a_new_trainer_that_was_loaded_in_part_does_not_train() {
    use candle_headroom::checkpoint::Checkpoint;
    use candle_headroom::testing::{FileFaults, FileOperation};

    let (_temporary, folder) = folder();
    let saved = train(&folder, 2, 1).bits();
    let latest = Checkpoint::latest(&folder).unwrap().unwrap();
    let reads = || FileFaults::in_folder(&folder).only(FileOperation::Read);
    let armed = reads().arm();
    latest.resume(&mut Run::new().trainer).unwrap();
    let last = armed.operations() - 1;
    drop(armed);

    let mut run = Run::new();
    run.step().unwrap();
    let before = run.bits();
    let armed = reads().at(last).arm();
    latest.resume(&mut run.trainer).unwrap_err();
    assert_eq!((armed.fired(), run.bits()), (1, before));
    drop(armed);
    run.step().unwrap();

    let mut run = Run::new();
    let armed = reads().at(last).arm();
    latest.resume(&mut run.trainer).unwrap_err();
    assert_eq!(armed.fired(), 1);
    drop(armed);
    for refused in [run.step().map(drop), run.trainer.state().map(drop)] {
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::UpdateInterrupted(_)), "{error}");
        assert!(error.to_string().contains("loaded in part"), "{error}");
    }
    latest.resume(&mut run.trainer).unwrap();
    assert_eq!(run.bits(), saved);
    run.step().unwrap();
}

/// What does not fit is refused before the first parameter of a new trainer changes.
#[test]
fn a_new_trainer_is_as_it_was_if_the_state_does_not_fit() {
    use candle_headroom::checkpoint::Checkpoint;

    let (_temporary, folder) = folder();
    let w = || Var::ones(2, DType::F32, &Device::Cpu).unwrap();
    let make = |w: &Var| {
        let sgd = Sgd::builder(vec![("w", w.clone())]).learning_rate(0.1);
        AdaptiveTrainer::builder(sgd.build().unwrap())
            .build()
            .unwrap()
    };
    let saved = w();
    let mut trainer = make(&saved);
    step(&mut trainer, &saved).unwrap();
    Checkpoints::builder(&folder)
        .open()
        .unwrap()
        .save_now(&trainer)
        .unwrap();
    let var = w();
    let adamw = AdamW::builder(vec![("w", var.clone())]).build().unwrap();
    let mut other = AdaptiveTrainer::builder(adamw).build().unwrap();
    let latest = Checkpoint::latest(&folder).unwrap().unwrap();
    let error = latest.resume(&mut other).unwrap_err();
    assert!(matches!(error, Error::State(_)), "{error}");
    assert_eq!(flat(&var), [1., 1.]);
    step(&mut other, &var).unwrap();
}

/// An accumulator in a loop of one's own refuses as well.
#[test]
fn an_accumulator_saves_no_half_update() {
    let w = Var::ones(2, DType::F32, &Device::Cpu).unwrap();
    let inner = AdamW::builder(vec![("w", w.clone())]).build().unwrap();
    let builder = candle_headroom::GradientAccumulator::builder(Stopping { inner, stops: true });
    let mut accumulator = builder.build().unwrap();
    let before = Resumable::state(&accumulator).unwrap();
    accumulator
        .add(w.sqr().unwrap().mean_all().unwrap(), 1)
        .unwrap();
    accumulator.update().unwrap_err();
    Resumable::state(&accumulator).unwrap_err();
    accumulator.load_state(&before).unwrap();
    Resumable::state(&accumulator).unwrap();
}

/// Moves its Var, and can then fail.
struct Moves {
    var: Var,
    fails: bool,
}

impl Optimizer for Moves {
    type Config = ();

    fn new(vars: Vec<Var>, (): ()) -> candle_core::Result<Self> {
        let var = vars[0].clone();
        Ok(Self { var, fails: false })
    }

    fn step(&mut self, _: &GradStore) -> candle_core::Result<()> {
        self.var.set(&(self.var.as_tensor() - 0.25)?)?;
        match self.fails {
            true => candle_core::bail!("half-way"),
            false => Ok(()),
        }
    }

    fn learning_rate(&self) -> f64 {
        0.
    }

    fn set_learning_rate(&mut self, _: f64) {}
}

/// It saves no state, so what an interrupted update left in it is there until it is replaced.
#[test]
fn a_foreign_optimizer_has_to_be_replaced() {
    let (_temporary, folder) = folder();
    let w = Var::ones(2, DType::F32, &Device::Cpu).unwrap();
    let foreign = |fails| {
        let var = w.clone();
        Foreign::new(Moves { var, fails }, vec![("w", w.clone())])
    };
    let mut trainer = AdaptiveTrainer::builder(foreign(false)).build().unwrap();
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    step(&mut trainer, &w).unwrap();
    checkpoints.save_now(&trainer).unwrap();
    trainer.optimizer_mut().optimizer_mut().fails = true;
    step(&mut trainer, &w).unwrap_err();
    checkpoints.save_now(&trainer).unwrap_err();
    checkpoints.resume_trainer(&mut trainer).unwrap().unwrap();
    assert_eq!(flat(&w), [0.75, 0.75]);
    let error = step(&mut trainer, &w).unwrap_err();
    assert!(matches!(error, Error::UpdateInterrupted(_)), "{error}");
    trainer.replace_optimizer(foreign(false));
    step(&mut trainer, &w).unwrap();
    assert_eq!((flat(&w), trainer.updates()), (vec![0.5, 0.5], 2));
}

#[test]
fn frozen_parameters_of_a_foreign_optimizer_are_saved() {
    let body = Var::new(&[3f32, 4.], &Device::Cpu).unwrap();
    let sgd = candle_nn::SGD::new(vec![body.clone()], 0.1).unwrap();
    let group = Group::from(vec![("body", body.clone())]);
    let foreign = Foreign::new(sgd, group.frozen());
    assert!(foreign.parameters().is_empty());
    let frozen = foreign.frozen();
    let ids: Vec<_> = frozen.iter().map(|it| (&*it.name, it.var.id())).collect();
    assert_eq!(ids, [("body", body.id())]);
}

/// A mixture of experts: the second parameter may receive its first gradient in one of the first four updates.
fn mixture(w: &[Var; 2]) -> AdaptiveTrainer<Sgd> {
    let vars = vec![("always", w[0].clone()), ("rarely", w[1].clone())];
    let optimizer = Sgd::builder(vars).learning_rate(0.1).build().unwrap();
    let builder = AdaptiveTrainer::builder(optimizer).reach_within(4);
    builder.build().unwrap()
}

#[test]
fn a_resumed_run_awaits_gradients_as_long_as_an_uninterrupted_one() {
    let two = || [0, 1].map(|_| Var::ones(2, DType::F32, &Device::Cpu).unwrap());
    // The update in which `rarely` receives its gradient, if any, and in which the run fails.
    for (reached, fails) in [(None, Some(4)), (Some(1), None), (Some(3), None)] {
        for interrupted in 0..8 {
            let (_temporary, folder) = folder();
            let mut w = two();
            let mut trainer = mixture(&w);
            let mut failed = None;
            for update in 1..=8 {
                if update == interrupted + 1 {
                    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
                    checkpoints.save_now(&trainer).unwrap();
                    w = two();
                    trainer = mixture(&w);
                    checkpoints.resume_trainer(&mut trainer).unwrap().unwrap();
                }
                let used = match reached == Some(update) {
                    true => &w[1],
                    false => &w[0],
                };
                if let Err(error) = step(&mut trainer, used) {
                    assert!(matches!(error, Error::UnreachedParameters(_)), "{error}");
                    failed = Some(update);
                    break;
                }
            }
            assert_eq!(
                failed, fails,
                "reached {reached:?}, interrupted after {interrupted}"
            );
        }
    }
}

#[test]
fn state_of_older_versions_begins_anew_and_later_ones_are_named() {
    let w = [0, 1].map(|_| Var::ones(2, DType::F32, &Device::Cpu).unwrap());
    let mut trainer = mixture(&w);
    let mut state = trainer.state().unwrap();
    let text = state.metadata["training"].clone();
    assert!(
        text.contains(r#""awaited":{"always":4,"rarely":4}"#),
        "{text}"
    );
    let older = text.replace(r#""awaited":{"always":4,"rarely":4},"#, "");
    state.metadata.insert("training".to_owned(), older);
    trainer.load_state(&state).unwrap();
    let later = text.replace(r#""version":2"#, r#""version":3,"more":0"#);
    state.metadata.insert("training".to_owned(), later);
    let error = trainer.load_state(&state).unwrap_err().to_string();
    assert!(
        error.contains("version 3, this crate reads version 2"),
        "{error}"
    );
}

/// The batches of one loader are lost or dropped; an update with those of another one must not count them.
#[test]
fn a_lost_window_is_consumed_by_no_other_update() {
    let w = Var::ones(1, DType::F32, &Device::Cpu).unwrap();
    let optimizer = || Sgd::builder(vec![("w", w.clone())]).build().unwrap();
    let builder = AccumulatingTrainer::builder(optimizer(), 2);
    let builder = builder.policy(Fixed::new(1).unwrap());
    let mut trainer = builder.build().unwrap();
    let collate = |numbers: Vec<f32>| -> std::result::Result<Tensor, BoxedError> {
        Ok(Tensor::new(numbers, &Device::Cpu)?)
    };
    let loader = |name: &str| -> Loader<Tensor> {
        let numbers: Vec<f32> = (0..20).map(|number| number as f32).collect();
        let builder = Loader::builder(Items(numbers), collate).batch(2);
        builder.name(name).build().unwrap()
    };
    let (mut a, mut b) = (loader("a"), loader("b"));
    let loss = |x: Tensor| x.broadcast_mul(&w)?.mean_all();

    for loses in ["an error", "a new optimizer", "loaded state"] {
        let saved = trainer.state().unwrap();
        let lost = a.next().unwrap().unwrap();
        assert!(trainer.step(&lost, |x, _| loss(x)).unwrap().is_none());
        match loses {
            "an error" => {
                let unfit = b.next().unwrap().unwrap();
                // Its first sample is added, its second fails.
                let error = trainer.step(&unfit, |x, micro| match micro.index {
                    0 => loss(x),
                    _ => candle_core::bail!("a bad sample"),
                });
                assert!(matches!(error, Err(Error::WindowLost(_))), "{error:?}");
            }
            "a new optimizer" => {
                trainer.replace_optimizer(optimizer());
            }
            _ => trainer.load_state(&saved).unwrap(),
        }
        for _ in 0..2 {
            let batch = b.next().unwrap().unwrap();
            trainer.step(&batch, |x, _| loss(x)).unwrap();
        }
        assert_eq!(trainer.samples(), 0, "updated");
        assert_eq!(trainer.position("a"), None, "{loses}");
        assert!(trainer.position("b").is_some());
    }
}
