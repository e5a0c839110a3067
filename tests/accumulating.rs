//! `AccumulatingTrainer`: one update from every k batches of a loader.

mod support;

use candle_core::{DType, Tensor, Var};
use candle_headroom::testing::{Faults, illegal_address};
use candle_headroom::{
    AccumulatingTrainer, Error, Foreign, GradientAccumulator, Phase, PolicyError,
};
use candle_nn::{AdamW, Optimizer, SGD};
use support::{ConvNet, Mlp, snapshot};

fn trainer(vars: &[Var], micro_batches: usize) -> AccumulatingTrainer<AdamW> {
    let optimizer = AdamW::new_lr(vars.to_vec(), 0.01).unwrap();
    AccumulatingTrainer::new(vars.to_vec(), optimizer, micro_batches).unwrap()
}

/// A loader's batches, of these sizes.
fn batches(sizes: &[usize]) -> Vec<(Tensor, Tensor)> {
    let (x, y) = Mlp::data(sizes.iter().sum(), DType::F32);
    let mut start = 0;
    let cut = sizes.iter().map(|&size| {
        let part = |t: &Tensor| t.narrow(0, start, size).unwrap();
        let batch = (part(&x), part(&y));
        start += size;
        batch
    });
    cut.collect()
}

#[test]
fn it_is_the_hand_written_loop_to_the_bit() {
    let sizes = [8, 8, 8, 8, 8, 8, 3];
    let (ours, by_hand) = (Mlp::new(DType::F32), Mlp::new(DType::F32));
    let mut trainer = trainer(&ours.vars, 3);
    let mut reports = Vec::new();
    for batch in &batches(&sizes) {
        reports.extend(trainer.step(batch, |(x, y), _| ours.loss(&x, &y)).unwrap());
    }
    reports.extend(trainer.flush().unwrap());
    assert!(trainer.flush().unwrap().is_none());

    let mut optimizer = AdamW::new_lr(by_hand.vars.clone(), 0.01).unwrap();
    let mut accumulator = GradientAccumulator::new(by_hand.vars.clone()).unwrap();
    for (i, (x, y)) in batches(&sizes).iter().enumerate() {
        accumulator
            .add(by_hand.loss(x, y).unwrap(), sizes[i])
            .unwrap();
        if (i + 1) % 3 == 0 {
            accumulator.flush(&mut optimizer).unwrap();
        }
    }
    accumulator.flush(&mut optimizer).unwrap();

    assert_eq!(snapshot(&ours.vars), snapshot(&by_hand.vars));
    let summary: Vec<_> = reports
        .iter()
        .map(|r| (r.step, r.samples, r.sizes.len()))
        .collect();
    assert_eq!(summary, [(1, 24, 3), (2, 24, 3), (3, 3, 1)]);
}

/// A fault at every point: the batch that failed was not added, those before it were, and giving it again ends to the bit where
/// an uninterrupted run ends, unless the error says that the window is lost, and then they are all given again.
#[test]
fn an_error_at_every_point_loses_nothing_silently() {
    let sizes = [4, 4, 4, 4];
    let run = |model: &ConvNet, armed: Option<usize>, error: fn() -> candle_core::Error| {
        let optimizer = AdamW::new_lr(model.trained(), 0.01).unwrap();
        let buffers = [model.norm.running_mean(), model.norm.running_var()];
        let trainer = AccumulatingTrainer::new(model.trained(), optimizer, 2).unwrap();
        let mut trainer = trainer.buffers(buffers).unwrap();
        let (x, y) = ConvNet::data(16);
        let batches: Vec<_> = (0..4)
            .map(|i| {
                (
                    x.narrow(0, 4 * i, 4).unwrap(),
                    y.narrow(0, 4 * i, 4).unwrap(),
                )
            })
            .collect();
        let faults = Faults::at(armed.unwrap_or(usize::MAX))
            .failing_with(error)
            .arm();
        let mut next = 0;
        let mut errors = 0;
        while next < sizes.len() && errors < 4 {
            match trainer.step(&batches[next], |(x, y), _| model.loss(&x, &y)) {
                Ok(_) => next += 1,
                Err(Error::WindowLost(_)) => {
                    errors += 1;
                    next -= next % 2;
                }
                Err(_) => errors += 1,
            }
        }
        assert_eq!(trainer.updates(), 2);
        (faults.points(), errors)
    };
    let expected = ConvNet::new();
    let (points, _) = run(&expected, None, illegal_address);
    assert!(points > 30);
    for error in [illegal_address, candle_headroom::testing::out_of_memory] {
        for point in 0..points {
            let model = ConvNet::new();
            let (_, errors) = run(&model, Some(point), error);
            assert!(errors <= 1);
            assert_eq!(
                snapshot(&model.vars),
                snapshot(&expected.vars),
                "point {point}"
            );
        }
    }
}

#[test]
fn bad_input_is_named() {
    let model = Mlp::new(DType::F32);
    let optimizer = SGD::new(model.vars.clone(), 0.1).unwrap();
    let error = AccumulatingTrainer::new(model.vars.clone(), optimizer, 0).unwrap_err();
    assert!(
        matches!(&error, Error::Policy(p) if matches!(**p, PolicyError::Zero { .. })),
        "{error}"
    );
    let mut trainer = trainer(&model.vars, 2);
    let (x, _) = Mlp::data(2, DType::F32);
    let error = trainer
        .step(&x.narrow(0, 0, 0).unwrap(), |x, _| x.sum_all())
        .unwrap_err();
    assert!(matches!(error, Error::Batch(_)));
}

#[test]
fn exhaustion_is_reported_with_its_micro_batch() {
    let model = Mlp::new(DType::F32);
    let mut trainer = trainer(&model.vars, 2);
    let batch = &batches(&[8])[0];
    let _armed = Faults::in_phase(Phase::Backward, 0).arm();
    let error = trainer
        .step(batch, |(x, y), _| model.loss(&x, &y))
        .unwrap_err();
    let exhausted = error.resource_exhausted().unwrap();
    assert_eq!(
        (exhausted.micro_batch, exhausted.phase),
        (Some(8), Some(Phase::Backward))
    );
}

/// Somebody else's optimizer that fails half-way, once.
struct Stops {
    inner: SGD,
    stops: bool,
}

impl Optimizer for Stops {
    type Config = bool;

    fn new(vars: Vec<Var>, stops: bool) -> candle_core::Result<Self> {
        let inner = SGD::new(vars, 0.1)?;
        Ok(Self { inner, stops })
    }

    fn step(&mut self, grads: &candle_core::backprop::GradStore) -> candle_core::Result<()> {
        match self.stops {
            true => Err(candle_headroom::testing::out_of_memory()),
            false => self.inner.step(grads),
        }
    }

    fn learning_rate(&self) -> f64 {
        self.inner.learning_rate()
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.inner.set_learning_rate(lr);
    }
}

#[test]
fn an_interrupted_update_leaves_nothing_in_the_next_window() {
    let model = Mlp::new(DType::F32);
    let batches = batches(&[4, 4]);
    let optimizer = |stops| Foreign(Stops::new(model.vars.clone(), stops).unwrap());
    let mut trainer = AccumulatingTrainer::new(model.vars.clone(), optimizer(true), 2).unwrap();
    let step = |trainer: &mut AccumulatingTrainer<Foreign<Stops>>, i: usize| {
        trainer.step(&batches[i], |(x, y), _| model.loss(&x, &y))
    };
    // Through `flush`, and through the step that completes a window.
    for completes in [false, true] {
        trainer.replace_optimizer(optimizer(true));
        assert!(step(&mut trainer, 0).unwrap().is_none());
        let error = match completes {
            true => step(&mut trainer, 1).unwrap_err(),
            false => trainer.flush().unwrap_err(),
        };
        assert!(matches!(error, Error::UpdateInterrupted(_)), "{error}");
        assert!(matches!(
            step(&mut trainer, 0),
            Err(Error::UpdateInterrupted(_))
        ));
        trainer.replace_optimizer(optimizer(false));
        assert!(step(&mut trainer, 0).unwrap().is_none());
        let report = step(&mut trainer, 1).unwrap().expect("two batches");
        assert_eq!((report.samples, report.sizes), (8, vec![4, 4]));
    }
}
