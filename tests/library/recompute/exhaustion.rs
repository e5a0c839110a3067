//! One sample that does not fit with regions kept, and regions that fail.

use candle_core::{Result, Tensor};
use candle_headroom::batch::{Fixed, Halving, Recompute};
use candle_headroom::error::Cause;
use candle_headroom::nn::{is_recomputing, recompute};
use candle_headroom::{Error, testing};

use super::{Model, samples};

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
