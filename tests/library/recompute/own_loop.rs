//! In a loop of the caller's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::error::{Phase, Resource};
use candle_headroom::nn::{is_recomputing, recompute};
use candle_headroom::{Error, ErrorExt, testing};

/// The error of a backward pass, by way of candle's and of this crate's.
fn failure(ys: &Tensor) -> Result<(candle_core::Error, Error)> {
    let backward = || -> Result<_> { Ok(ys.sum_all()?.backward()) };
    let error = backward()?.expect_err("the second run fails");
    Ok((error, backward()?.expect_err("again").into()))
}

#[test]
fn a_failure_in_the_second_run_is_typed() -> Result<()> {
    let xs = Var::ones((2, 3), DType::F32, &Device::Cpu)?;
    let fails = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&fails);
    let ys = recompute(xs.as_tensor(), move |xs| {
        let is_broken = Arc::clone(&is_broken);
        recompute(xs, move |xs| {
            match is_recomputing() && is_broken.load(Relaxed) {
                true => Err(testing::out_of_memory()),
                false => xs.exp(),
            }
        })
    })?;
    let (candles, ours) = failure(&ys)?;
    let of_candles = candles.resource_exhausted().expect("an exhaustion");
    let of_ours = ours.resource_exhausted().expect("an exhaustion");
    for exhausted in [&of_candles, of_ours] {
        assert_eq!(exhausted.phase, Some(Phase::Recompute));
        assert_ne!(exhausted.resource, Resource::default());
    }
    let wrapped = candles.context("in a loop");
    let exhausted = wrapped.resource_exhausted().expect("an exhaustion");
    assert_eq!(exhausted.phase, Some(Phase::Recompute));
    fails.store(false, Relaxed);
    ys.sum_all()?.backward()?;
    Ok(())
}

/// Whatever is not memory that runs out.
#[test]
fn an_error_of_the_closure_comes_back_as_it_is() -> Result<()> {
    let xs = Var::ones((2, 3), DType::F32, &Device::Cpu)?;
    let candles = recompute(xs.as_tensor(), |xs| match is_recomputing() {
        true => Err(candle_core::Error::Msg("no room in the cellar".to_owned())),
        false => xs.exp(),
    })?;
    let (error, ours) = failure(&candles)?;
    assert_eq!(error.to_string(), "no room in the cellar");
    assert!(
        matches!(&ours, Error::Candle(error) if matches!(**error, candle_core::Error::Msg(_))),
        "{ours:?}"
    );
    let own = recompute(xs.as_tensor(), |xs| match is_recomputing() {
        true => Err(Error::external(std::fmt::Error).into()),
        false => xs.exp(),
    })?;
    let (_, ours) = failure(&own)?;
    assert!(ours.downcast::<std::fmt::Error>().is_ok());
    Ok(())
}

#[test]
fn a_region_that_differs_is_an_error() -> Result<()> {
    let xs = Var::ones((4, 4), DType::F32, &Device::Cpu)?;
    let grows = recompute(xs.as_tensor(), |xs| match is_recomputing() {
        true => Tensor::cat(&[xs, xs], 0),
        false => xs.exp(),
    })?;
    let (_, ours) = failure(&grows)?;
    assert!(
        matches!(&ours, Error::Recompute(error) if error.to_string().contains("returned ([8, 4], F32)")),
        "{ours:?}"
    );
    Ok(())
}
