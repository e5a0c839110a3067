//! Kept or recomputed, in a trainer or not: the same bits.

use candle_core::{Result, Tensor};
use candle_headroom::batch::{CutFinding, Fixed, Recompute};
use candle_headroom::error::Phase;
use candle_headroom::nn::recompute;
use candle_headroom::testing::Faults;
use candle_headroom::{Error, GradientAccumulator, Sgd, StepReport};

use super::{Model, samples};

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
    for point in 0..24 {
        // `Fixed` gives up, unless what failed has succeeded before.
        let faults = || Some(Faults::in_phase(Phase::Recompute, point));
        match trained(Recompute::Always, faults()) {
            Err(Error::ResourceExhausted(exhausted)) if point < 2 => {
                assert_eq!(exhausted.phase, Some(Phase::Recompute));
            }
            Err(error) => return Err(error),
            Ok((model, reports)) => {
                assert_eq!(model.bits(), expected.bits(), "{point}");
                let retries = reports.iter().map(|report| report.retries);
                // Memory that runs out in the check of a cut fails nothing.
                assert!(reports[0].cut_check().is_some(), "a batch that is cut");
                let mut checks = reports.iter().filter_map(StepReport::cut_check);
                let given_up = checks.any(|check| check.finding != CutFinding::Agrees);
                assert_eq!(retries.sum::<usize>(), usize::from(!given_up), "{point}");
            }
        }
    }
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
