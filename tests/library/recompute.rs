//! Trainers of models with marked regions.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::batch::{
    EventKind, Fixed, Halving, Observer, Recompute, Regions, TrainingEvent,
};
use candle_headroom::error::{Cause, Phase};
use candle_headroom::nn::{Dropout, is_recomputing, recompute};
use candle_headroom::testing::{self, Faults};
use candle_headroom::train::AdaptiveTrainerBuilder;
use candle_headroom::{AdaptiveTrainer, Error, GradientAccumulator, Sgd, StepReport};

const WIDTH: usize = 8;

/// Two blocks with dropout.
struct Model {
    weights: Vec<Var>,
}

impl Model {
    fn new() -> Result<Self> {
        let weight = |seed: usize| {
            let values = (0..WIDTH * WIDTH).map(|i| ((i * 31 + seed * 17) % 23) as f32 / 23. - 0.5);
            Var::from_tensor(&Tensor::from_iter(values, &Device::Cpu)?.reshape((WIDTH, WIDTH))?)
        };
        let weights = (0..2).map(weight).collect::<Result<_>>()?;
        Ok(Self { weights })
    }

    fn loss(&self, xs: &Tensor) -> Result<Tensor> {
        let mut xs = xs.clone();
        for weight in &self.weights {
            let weight = weight.clone();
            xs = recompute(&xs, move |xs| {
                let hidden = testing::probe(&xs.matmul(&weight)?.tanh()?)?;
                xs + Dropout::new(0.3).forward(&hidden, true)?
            })?;
        }
        xs.sqr()?.mean_all()
    }

    fn builder(&self) -> AdaptiveTrainerBuilder<Sgd> {
        let optimizer = Sgd::builder(self.weights.clone()).learning_rate(0.1);
        AdaptiveTrainer::builder(optimizer.build().expect("an optimizer"))
    }

    /// The bits of all weights.
    fn bits(&self) -> Vec<u32> {
        let values = self.weights.iter().flat_map(|w| {
            w.flatten_all()
                .and_then(|w| w.to_vec1::<f32>())
                .expect("weights")
        });
        values.map(f32::to_bits).collect()
    }
}

fn samples(count: usize) -> Result<Tensor> {
    let values = (0..count * WIDTH).map(|i| (i * 7 % 13) as f32 / 13. - 0.4);
    Tensor::from_iter(values, &Device::Cpu)?.reshape((count, WIDTH))
}

/// Steps in micro-batches of 3.
fn trained(
    recompute: Recompute,
    faults: Option<Faults>,
) -> candle_headroom::Result<(Model, Vec<StepReport>)> {
    let model = Model::new()?;
    let policy = Fixed::new(3)?;
    let mut trainer = model
        .builder()
        .recompute(recompute)
        .policy(policy)
        .build()?;
    let batch = samples(8)?;
    let armed = faults.map(Faults::arm);
    let reports = (0..3).map(|_| trainer.step(&batch, |xs, _| model.loss(&xs)));
    let reports = reports.collect::<candle_headroom::Result<_>>()?;
    assert!(armed.is_none_or(|armed| armed.fired() == 1));
    Ok((model, reports))
}

#[test]
fn recomputed_steps_equal_kept_ones_to_the_bit() -> candle_headroom::Result<()> {
    let (kept, _) = trained(Recompute::Never, None)?;
    let (recomputed, _) = trained(Recompute::Always, None)?;
    assert_eq!(kept.bits(), recomputed.bits());
    assert_ne!(kept.bits(), Model::new()?.bits());
    Ok(())
}

/// Each second run and its backward pass, in each micro-batch of the first two steps.
#[test]
fn a_region_that_exhausts_memory_is_retried() -> candle_headroom::Result<()> {
    let (expected, _) = trained(Recompute::Always, None)?;
    for point in 0..12 {
        // `Fixed` gives up, unless what failed has succeeded before.
        let faults = || Some(Faults::in_phase(Phase::Recompute, point));
        match trained(Recompute::Always, faults()) {
            Err(Error::ResourceExhausted(exhausted)) if point < 2 => {
                assert_eq!(exhausted.phase, Some(Phase::Recompute));
            }
            Err(error) => return Err(error),
            Ok((model, reports)) => {
                assert_eq!(model.bits(), expected.bits(), "{point}");
                assert_eq!(
                    reports.iter().map(|report| report.retries).sum::<usize>(),
                    1
                );
            }
        }
    }
    Ok(())
}

/// A closure that has room for `kept` samples with regions kept, and for `recomputed` samples otherwise.
fn tight(
    model: &Model,
    xs: &Tensor,
    recomputes: bool,
    [kept, recomputed]: [usize; 2],
) -> Result<Tensor> {
    match xs.dim(0)? > if recomputes { recomputed } else { kept } {
        true => Err(testing::out_of_memory()),
        false => model.loss(xs),
    }
}

#[test]
fn one_sample_that_does_not_fit_is_recomputed() -> candle_headroom::Result<()> {
    let model = Model::new()?;
    let batch = samples(8)?;
    // The first region is seen before the first failure.
    let fails_late = |xs: &Tensor, recomputes: bool, room| {
        model.loss(xs)?;
        tight(&model, xs, recomputes, room)
    };
    for policy in ["predictive", "halving"] {
        let build = |recompute| {
            let builder = model.builder().recompute(recompute);
            match policy {
                "halving" => builder.policy(Halving::default()).build(),
                _ => builder.build(),
            }
        };
        let mut trainer = build(Recompute::Auto)?;
        let report = trainer.step(&batch, |xs, micro| {
            fails_late(&xs, micro.recomputes, [0, 2])
        })?;
        assert_eq!(report.samples, 8, "{policy}");
        assert!(report.micro_batch() <= 2);
        let text: Vec<_> = report.events.iter().map(ToString::to_string).collect();
        assert!(
            text.iter()
                .any(|text| text.contains("regions are recomputed")),
            "{text:?}"
        );
        // It stays so.
        let report = trainer.step(&batch, |xs, micro| {
            fails_late(&xs, micro.recomputes, [0, 2])
        })?;
        assert!(report.retries <= 1, "{policy}: {report}");

        // Nothing else helps.
        let mut trainer = build(Recompute::Auto)?;
        let before = model.bits();
        let failed = trainer.step(&batch, |xs, micro| {
            fails_late(&xs, micro.recomputes, [0, 0])
        });
        let Err(Error::ResourceExhausted(exhausted)) = failed else {
            panic!("{failed:?}")
        };
        assert_eq!(
            (exhausted.cause, exhausted.micro_batch),
            (Cause::NeverFits, Some(1))
        );
        assert_eq!(model.bits(), before);
        let mut trainer = build(Recompute::Never)?;
        let failed = trainer.step(&batch, |xs, micro| {
            fails_late(&xs, micro.recomputes, [0, 8])
        });
        let Err(Error::ResourceExhausted(exhausted)) = failed else {
            panic!("{failed:?}")
        };
        let remedies: Vec<_> = exhausted
            .ranked_remedies()
            .map(ToString::to_string)
            .collect();
        assert!(
            remedies
                .iter()
                .any(|remedy| remedy.contains("Recompute::Always")),
            "{remedies:?}"
        );
    }
    Ok(())
}

/// Statistics that a layer of the user's own updates.
#[test]
fn named_buffers_change_once() -> candle_headroom::Result<()> {
    let model = Model::new()?;
    let counts = Var::zeros(1, DType::F32, &Device::Cpu)?;
    let policy = Fixed::new(4)?;
    let builder = model.builder().buffers([counts.as_tensor()]).policy(policy);
    let mut trainer = builder.recompute(Recompute::Always).build()?;
    let batch = samples(8)?;
    let seen = Arc::new(Mutex::new(Vec::new()));
    trainer.step(&batch, |xs, _| {
        let (weights, counts, seen) = (model.weights.clone(), counts.clone(), Arc::clone(&seen));
        let ys = recompute(&xs, move |xs| {
            seen.lock().expect("one thread").push(is_recomputing());
            counts.set(&(counts.as_tensor() + 1.)?)?;
            xs.matmul(&weights[0])?.matmul(&weights[1])
        })?;
        ys.sqr()?.mean_all()
    })?;
    assert_eq!(
        *seen.lock().expect("one thread"),
        [false, true, false, true]
    );
    assert_eq!(counts.to_vec1::<f32>()?, [2.]);
    Ok(())
}

#[test]
fn a_gradient_accumulator_needs_nothing_else() -> candle_headroom::Result<()> {
    let (kept, marked) = (Model::new()?, Model::new()?);
    let batch = samples(4)?;
    for (model, recomputes) in [(&kept, false), (&marked, true)] {
        let optimizer = Sgd::builder(model.weights.clone())
            .learning_rate(0.1)
            .build()?;
        let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
        let mut xs = batch.clone();
        for weight in &model.weights {
            let weight = weight.clone();
            let block = move |xs: &Tensor| xs.matmul(&weight)?.tanh();
            xs = if recomputes {
                recompute(&xs, block)?
            } else {
                block(&xs)?
            };
        }
        accumulator.add(xs.sqr()?.mean_all()?, 4)?;
        accumulator.update()?;
    }
    assert_eq!(kept.bits(), marked.bits());
    Ok(())
}

#[derive(Debug, Default)]
struct Seen {
    phases: Mutex<Vec<Phase>>,
    regions: Mutex<Vec<Regions>>,
}

impl Observer for Seen {
    fn observe(&self, event: &TrainingEvent<'_>) {
        match event.kind {
            EventKind::PhaseEnded { phase, .. } => self.phases.lock().expect("alone").push(phase),
            EventKind::MicroBatchEnded { completed, .. } => {
                self.regions.lock().expect("alone").push(completed.regions);
            }
            _ => {}
        }
    }
}

#[test]
fn observers_see_when_regions_ran_again() -> candle_headroom::Result<()> {
    let model = Model::new()?;
    let seen = Arc::new(Seen::default());
    let builder = model
        .builder()
        .observer(Arc::clone(&seen))
        .policy(Fixed::new(8)?);
    let mut trainer = builder.recompute(Recompute::Always).build()?;
    trainer.step(&samples(8)?, |xs, _| model.loss(&xs))?;
    let phases = std::mem::take(&mut *seen.phases.lock().expect("alone"));
    use Phase::{Accumulate, Backward, Forward, Optimizer, Transfer};
    let expected = [
        Transfer,
        Forward,
        Phase::Recompute,
        Phase::Recompute,
        Backward,
        Accumulate,
        Optimizer,
    ];
    assert_eq!(phases, expected);
    assert_eq!(*seen.regions.lock().expect("alone"), [Regions::Recomputed]);
    // In evaluation nothing runs again.
    trainer.evaluate(&samples(8)?, |xs, _| model.loss(&xs)?.to_scalar::<f32>())?;
    assert!(
        !seen
            .phases
            .lock()
            .expect("alone")
            .contains(&Phase::Recompute)
    );
    Ok(())
}

/// A buffer that the region reads and moves, as the vector of a power iteration.
#[test]
fn a_second_run_sees_the_buffers_of_the_first() -> candle_headroom::Result<()> {
    let run = |recompute| -> candle_headroom::Result<_> {
        let model = Model::new()?;
        let scale = Var::ones(1, DType::F32, &Device::Cpu)?;
        let builder = model.builder().buffers([scale.as_tensor()]);
        let mut trainer = builder
            .recompute(recompute)
            .policy(Fixed::new(4)?)
            .build()?;
        for _ in 0..2 {
            trainer.step(&samples(8)?, |xs, _| {
                let (weights, scale) = (model.weights.clone(), scale.clone());
                let block = move |xs: &Tensor| {
                    let ys = xs.matmul(&weights[0])?.tanh()?.matmul(&weights[1])?;
                    let ys = ys.broadcast_mul(&scale.as_tensor().copy()?)?;
                    scale.set(&(scale.as_tensor() * 1.5)?)?;
                    Ok(ys)
                };
                candle_headroom::nn::recompute(&xs, block)?
                    .sqr()?
                    .mean_all()
            })?;
        }
        Ok((model.bits(), scale.to_vec1::<f32>()?))
    };
    assert_eq!(run(Recompute::Always)?, run(Recompute::Never)?);
    Ok(())
}

/// Nested regions that fail before the first one is finished.
#[test]
fn a_region_that_fails_is_known_to_be_there() -> candle_headroom::Result<()> {
    let model = Model::new()?;
    let mut trainer = model.builder().recompute(Recompute::Auto).build()?;
    let report = trainer.step(&samples(4)?, |xs, micro| {
        let (weight, recomputes) = (model.weights[0].clone(), micro.recomputes);
        let other = model.weights[1].clone();
        let ys = recompute(&xs, move |xs| {
            let weight = weight.clone();
            let ys = recompute(xs, move |xs| xs.matmul(&weight))?;
            match recomputes {
                false => Err(testing::out_of_memory()),
                true => ys.matmul(&other),
            }
        })?;
        ys.sqr()?.mean_all()
    })?;
    assert_eq!(report.samples, 4);
    Ok(())
}

#[test]
fn a_panic_in_the_second_run_leaves_nothing_behind() -> candle_headroom::Result<()> {
    let (model, plain) = (Model::new()?, Model::new()?);
    let policy = || Fixed::new(8);
    let mut trainer = model
        .builder()
        .recompute(Recompute::Always)
        .policy(policy()?)
        .build()?;
    let batch = samples(8)?;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        trainer.step(&batch, |xs, _| {
            let weight = model.weights[0].clone();
            let ys = recompute(&xs, move |xs| {
                assert!(!is_recomputing(), "on purpose");
                xs.matmul(&weight)
            })?;
            ys.sqr()?.mean_all()
        })
    }));
    assert!(panicked.is_err());
    assert!(!is_recomputing());
    assert_eq!(model.bits(), plain.bits());
    trainer.step(&batch, |xs, _| model.loss(&xs))?;
    let mut expected = plain
        .builder()
        .recompute(Recompute::Always)
        .policy(policy()?)
        .build()?;
    expected.step(&batch, |xs, _| plain.loss(&xs))?;
    assert_eq!(model.bits(), plain.bits());
    Ok(())
}

/// candle allows it, and a model may be evaluated on one thread and differentiated on another.
#[test]
fn a_graph_is_differentiated_on_another_thread() -> candle_headroom::Result<()> {
    let model = Model::new()?;
    let loss = candle_headroom::nn::seeded(3, || model.loss(&samples(4)?))?;
    let here = loss.backward()?;
    let there = std::thread::scope(|scope| scope.spawn(|| loss.backward()).join());
    let there = there.expect("no panic")?;
    for weight in &model.weights {
        let of = |store: &candle_core::backprop::GradStore| -> Result<Vec<f32>> {
            store
                .get(weight)
                .expect("a gradient")
                .flatten_all()?
                .to_vec1()
        };
        assert_eq!(of(&here)?, of(&there)?);
    }
    Ok(())
}
