//! A second run that fails leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use candle_core::{Error, Result};
use candle_headroom_nn::{self as nn, Module, SecondRun, is_recomputing, recompute};

use super::{Block, WIDTH, same_gradients, var};

fn no_room() -> Error {
    Error::Msg("no room in the cellar".to_owned())
}

#[test]
fn a_failure_in_the_second_run_is_marked_and_leaves_nothing() -> Result<()> {
    let (xs, block) = (var(&[2, WIDTH], 1)?, Block::new(3)?);
    let fails = Arc::new(AtomicBool::new(true));
    let (inner, is_broken) = (block.clone(), Arc::clone(&fails));
    let ys = recompute(xs.as_tensor(), move |xs| {
        let (inner, is_broken) = (inner.clone(), Arc::clone(&is_broken));
        recompute(xs, move |xs| {
            match is_recomputing() && is_broken.load(Relaxed) {
                true => Err(no_room()),
                false => inner.forward(xs),
            }
        })
    })?;
    let loss = ys.sum_all()?;
    let error = loss.backward().expect_err("the second run fails");
    // Once, although two regions are around it.
    let SecondRun(inner) = SecondRun::of(&error).expect("marked");
    assert!(matches!(inner, Error::Msg(_)), "{inner:?}");
    assert_eq!(error.to_string(), no_room().to_string());
    // The same graph once the cause is gone.
    fails.store(false, Relaxed);
    let expected = block.forward(&xs)?.sum_all()?.backward()?;
    same_gradients(&loss.backward()?, &expected, &block.vars())?;
    assert!(!is_recomputing());
    Ok(())
}

/// Nothing of the gradients that were on their way is added to those of the next pass.
#[test]
fn a_pass_that_failed_at_any_point_can_be_repeated() -> Result<()> {
    let (xs, gain) = (var(&[2, WIDTH], 1)?, var(&[WIDTH], 2)?);
    let weights = (3..6).map(|seed| var(&[2 * WIDTH, WIDTH], seed));
    let weights = weights.collect::<Result<Vec<_>>>()?;
    let down = var(&[WIDTH, WIDTH], 7)?;
    // The point at which a second run fails.
    let until = Arc::new(AtomicUsize::new(usize::MAX));
    let point = |until: &AtomicUsize| match is_recomputing() && until.fetch_sub(1, Relaxed) == 1 {
        true => Err(no_room()),
        false => Ok(()),
    };
    let mut ys = xs.as_tensor().clone();
    let mut sum = xs.sqr()?;
    for weight in &weights {
        let (gain, weight, down) = (gain.clone(), weight.clone(), down.clone());
        let (until, before) = (Arc::clone(&until), ys.clone());
        ys = recompute(&ys, move |ys| {
            point(&until)?;
            let normed = nn::ops::rms_norm(ys, &gain, 1e-5)?;
            let (weight, down, until) = (weight.clone(), down.clone(), Arc::clone(&until));
            let mixed = recompute(&normed, move |normed| {
                let both = nn::Linear::new(weight.as_tensor().clone(), None).forward(normed)?;
                point(&until)?;
                let gated = nn::ops::swiglu(&both.reshape((1, 2, 2 * WIDTH))?)?;
                nn::Linear::new(down.as_tensor().clone(), None).forward(&gated)
            })?;
            mixed.squeeze(0)? + ys
        })?;
        sum = ((sum + &ys)? + before.tanh()?)?;
    }
    let loss = sum.mean_all()?;
    let mut vars = vec![xs, gain, down];
    vars.extend(weights);
    let expected = loss.backward()?;
    // Of three regions: their second runs, and those of what they hold, which run in each of them and again to be differentiated.
    const POINTS: usize = 9;
    for at in 1..=POINTS + 1 {
        until.store(at, Relaxed);
        assert_eq!(loss.backward().is_err(), at <= POINTS, "point {at}");
        until.store(usize::MAX, Relaxed);
        same_gradients(&loss.backward()?, &expected, &vars)?;
    }
    Ok(())
}
