//! The second run does what the first one did, or is an error.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::{
    self as nn, BatchNorm, Dropout, ModuleT, RecomputeError, is_recomputing, recompute,
};

use super::{Block, WIDTH, same_gradients, var};
use crate::check::{FLOATS, difference, same_bits};

#[test]
fn dropout_draws_the_same_mask_again() -> Result<()> {
    let (xs, block) = (var(&[64, WIDTH], 5)?, Block::new(3)?);
    let loss = || -> Result<Tensor> {
        let mut ys = xs.as_tensor().clone();
        for _ in 0..2 {
            let block = block.clone();
            ys = recompute(&ys, move |ys| {
                Dropout::new(0.5).forward(&block.forward(ys)?, true)
            })?;
        }
        Ok(ys)
    };
    let ys = nn::seeded(3, loss)?;
    let same = nn::seeded(3, loss)?;
    same_bits(&ys, &same)?;
    let zeros =
        |t: &Tensor| -> Result<f32> { t.eq(0f32)?.to_dtype(DType::F32)?.mean_all()?.to_scalar() };
    assert!((zeros(&ys)? - 0.5).abs() < 0.1);
    let (first, second) = (ys.sum_all()?.backward()?, same.sum_all()?.backward()?);
    same_gradients(&first, &second, &block.vars())?;
    // The masks of one run, made into constants, give plain operations the same gradients.
    let kept = ys.ne(0f32)?.to_dtype(DType::F32)?;
    let last = |ys: &Tensor| (block.forward(ys)? * 2.)?.mul(&kept);
    let once = nn::seeded(3, || {
        let block = block.clone();
        recompute(xs.as_tensor(), move |ys| {
            Dropout::new(0.5).forward(&block.forward(ys)?, true)
        })
    })?;
    let first_kept = once.ne(0f32)?.to_dtype(DType::F32)?;
    let plain = last(&(block.forward(&xs)? * 2.)?.mul(&first_kept)?)?;
    let expected = plain.sum_all()?.backward()?;
    for var in block.vars().iter().chain([&xs]) {
        let of = |store: &GradStore| store.get(var).expect("a gradient").to_dtype(DType::F64);
        assert!(difference(&of(&first)?, &of(&expected)?) < 1e-5);
    }
    // Without a scope each region draws a seed, and keeps it: another mask would be an error, as below.
    loss()?.sum_all()?.backward()?;
    // Two regions in a row draw different masks.
    let masks = nn::seeded(3, || -> Result<_> {
        let mask = || {
            recompute(xs.as_tensor(), |xs| {
                Dropout::new(0.5).forward(&xs.ones_like()?, true)
            })
        };
        Ok([mask()?, mask()?])
    })?;
    assert!(
        masks[0]
            .sub(&masks[1])?
            .abs()?
            .max_all()?
            .to_scalar::<f32>()?
            > 0.
    );
    Ok(())
}

/// Returns the error of the backward pass.
fn failure(ys: &Tensor) -> RecomputeError {
    let loss = ys.sum_all().expect("a sum");
    let error = loss.backward().expect_err("the region differs");
    RecomputeError::of(&error).expect("of the region").clone()
}

#[test]
fn a_region_that_differs_is_an_error() -> Result<()> {
    let xs = var(&[4, 4], 1)?;
    let random = recompute(xs.as_tensor(), |xs| {
        xs * Tensor::rand(0f32, 1., (4, 4), &Device::Cpu)?
    })?;
    let error = failure(&random);
    assert!(
        error.to_string().contains("returned values that differ"),
        "{error}"
    );

    let grows = recompute(xs.as_tensor(), |xs| {
        if is_recomputing() {
            Tensor::cat(&[xs, xs], 0)
        } else {
            xs.exp()
        }
    })?;
    let error = failure(&grows);
    let text = "returned ([8, 4], F32) after ([4, 4], F32)";
    assert!(error.to_string().contains(text), "{error}");

    let fewer = recompute(xs.as_tensor(), |xs| {
        Ok(if is_recomputing() {
            vec![]
        } else {
            vec![xs.exp()?]
        })
    })?;
    let error = failure(&fewer[0]);
    let text = "a recomputed region returned 0 tensors after 1";
    assert!(error.to_string().starts_with(text), "{error}");

    let (a, b) = (var(&[4], 2)?, var(&[4], 2)?);
    let switches = recompute(xs.as_tensor(), move |xs| {
        xs.broadcast_mul(if is_recomputing() { &a } else { &b })
    })?;
    let error = failure(&switches);
    assert!(
        error.to_string().contains("used a Var of shape [4]"),
        "{error}"
    );

    // NaN is no difference: the loss shows it.
    let nan = recompute(xs.as_tensor(), |xs| xs * f64::NAN)?;
    nan.sum_all()?.backward()?;
    Ok(())
}

#[test]
fn running_statistics_move_once() -> Result<()> {
    let statistics = || -> Result<BatchNorm> {
        let (mean, variance) = (
            var(&[WIDTH], 1)?,
            Var::ones(WIDTH, DType::F32, &Device::Cpu)?,
        );
        let (weight, bias) = (var(&[WIDTH], 2)?, var(&[WIDTH], 3)?);
        BatchNorm::new(
            WIDTH,
            mean.into_inner(),
            variance.into_inner(),
            weight.into_inner(),
            bias.into_inner(),
            1e-5,
        )
    };
    let (norm, plain, xs) = (statistics()?, statistics()?, var(&[8, WIDTH], 5)?);
    let inside = norm.clone();
    let ys = recompute(xs.as_tensor(), move |xs| {
        let inside = inside.clone();
        recompute(xs, move |xs| inside.forward_t(xs, true))
    })?;
    let found = ys.sqr()?.sum_all()?.backward()?;
    let expected = plain.forward_t(&xs, true)?.sqr()?.sum_all()?.backward()?;
    same_bits(norm.running_mean(), plain.running_mean())?;
    same_bits(norm.running_var(), plain.running_var())?;
    same_gradients(&found, &expected, &[xs])
}

/// A sum that is split in another way changes the last bit of a value, which is much in bf16.
#[test]
fn a_rounding_is_no_difference() -> Result<()> {
    for dtype in FLOATS {
        let xs = Var::from_tensor(&Tensor::full(3f32, (4, 4), &Device::Cpu)?.to_dtype(dtype)?)?;
        let again = match dtype {
            DType::BF16 => 1. + 1. / 128.,
            DType::F16 => 1. + 1. / 1024.,
            _ => 1. + 1e-6,
        };
        let ys = recompute(xs.as_tensor(), move |xs| {
            xs * if is_recomputing() { again } else { 1. }
        })?;
        ys.sum_all()?.backward()?;
        let ys = recompute(xs.as_tensor(), |xs| {
            xs * if is_recomputing() { 1.25 } else { 1. }
        })?;
        let error = failure(&ys);
        assert!(
            error.to_string().contains("returned values that differ"),
            "{error}"
        );
    }
    Ok(())
}
