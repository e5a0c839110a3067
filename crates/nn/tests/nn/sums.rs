//! Sums of f16 and bf16 are computed in f32: of these long rows of numbers of one sign, a sum in half precision stops growing.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_headroom_nn::{RmsNorm, loss, ops};

use crate::check::{Operation, agrees_within, difference, factors, numbers, rounding};
use crate::{batch_norm, group_norm};

const LONG: usize = 65536;
const EPS: f32 = 1e-3;

/// Numbers from 1/2 to 3/2.
fn positive(shape: &[usize], seed: u64) -> Result<Tensor> {
    (numbers(shape, seed) / 4.)? + 1.
}

/// What f32 and f64 lose in sums of so many numbers, and candle's compositions by the gradient of the maximum. Half precision loses no
/// more than in short rows.
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-8,
        DType::F32 => 5e-4,
        half => rounding(half),
    }
}

/// Asserts that an operation agrees with plain ones, for a gradient of both signs and for one that is positive.
fn agree(
    limit: &dyn Fn(DType) -> f64,
    operation: Operation,
    plain: Operation,
    inputs: &[Tensor],
) -> Result<()> {
    agrees_within(limit, operation, plain, inputs)?;
    // What is differentiated is the sum of the output times the factors.
    let times_sign = |ys: Tensor| -> Result<Tensor> {
        let signs = factors(ys.dims()).sign()?.to_dtype(ys.dtype())?;
        ys * signs
    };
    agrees_within(
        limit,
        &|x| times_sign(operation(x)?),
        &|x| times_sign(plain(x)?),
        inputs,
    )
}

#[test]
fn softmax_of_long_rows() -> Result<()> {
    // Of more elements, f16 cannot hold the outputs.
    let inputs = [positive(&[2, LONG / 4], 1)?];
    let plain: Operation = &|x| candle_nn::ops::softmax(&x[0], D::Minus1);
    agree(&limit, &|x| ops::softmax(&x[0], 1), plain, &inputs)?;
    let fused: Operation = &|x| ops::softmax_last_dim(&x[0]);
    agree(&limit, fused, plain, &inputs)
}

#[test]
fn log_softmax_of_long_rows() -> Result<()> {
    // The kept output, of about -11, is rounded; the gradient has its power times the sum.
    let kept = |dtype: DType| match dtype {
        DType::F16 => 1e-2,
        DType::BF16 => 5e-2,
        other => limit(other),
    };
    agree(
        &kept,
        &|x| ops::log_softmax(&x[0], 1),
        &|x| candle_nn::ops::log_softmax(&x[0], 1),
        &[positive(&[2, LONG], 1)?],
    )
}

#[test]
fn cross_entropy_of_long_rows_and_many_rows() -> Result<()> {
    // The target is another column than those that are differentiated: its part of the gradient would hide theirs. The factor brings
    // theirs into the range of f16.
    let of_others =
        |x: &[Tensor], loss: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| -> Result<Tensor> {
            let column = Tensor::zeros((2, 1), x[0].dtype(), &Device::Cpu)?;
            let targets = Tensor::new(&[LONG as u32; 2], &Device::Cpu)?;
            loss(&Tensor::cat(&[&x[0], &column], 1)?, &targets)? * 64.
        };
    agree(
        &limit,
        &|x| of_others(x, &loss::cross_entropy),
        &|x| of_others(x, &candle_nn::loss::cross_entropy),
        &[positive(&[2, LONG], 1)?],
    )?;
    let targets = Tensor::zeros(LONG, DType::U32, &Device::Cpu)?;
    for dtype in [DType::F16, DType::BF16] {
        let logits = positive(&[LONG, 4], 1)?.to_dtype(dtype)?;
        let found = loss::cross_entropy(&logits, &targets)?.to_dtype(DType::F64)?;
        let exact = candle_nn::loss::cross_entropy(&logits.to_dtype(DType::F64)?, &targets)?;
        let off = difference(&found, &exact);
        assert!(off <= rounding(dtype), "{dtype:?}: {off:e} off");
    }
    Ok(())
}

#[test]
fn norms_of_long_rows_and_many_rows() -> Result<()> {
    for shape in [[2, LONG], [LONG / 4, 8]] {
        let (xs, weight, bias) = (
            positive(&shape, 1)?,
            positive(&shape[1..], 2)?,
            positive(&shape[1..], 3)?,
        );
        let inputs = [xs.clone(), weight.clone()];
        let plain: Operation = &|x| candle_nn::ops::rms_norm_slow(&x[0], &x[1], EPS);
        let exact: Operation = &|x| RmsNorm::new(x[1].clone(), EPS.into()).forward_diff(&x[0]);
        agree(&limit, exact, plain, &inputs)?;
        agree(
            &limit,
            &|x| ops::rms_norm(&x[0], &x[1], EPS),
            plain,
            &inputs,
        )?;
        let inputs = [xs, weight, bias];
        let plain: Operation = &|x| candle_nn::ops::layer_norm_slow(&x[0], &x[1], &x[2], EPS);
        let exact: Operation = &|x| ops::layer_norm_slow(&x[0], &x[1], &x[2], EPS);
        agree(&limit, exact, plain, &inputs)?;
        let fused: Operation = &|x| ops::layer_norm(&x[0], &x[1], &x[2], EPS);
        agree(&limit, fused, plain, &inputs)?;
    }
    Ok(())
}

#[test]
fn norms_of_long_channels() -> Result<()> {
    let inputs = |shape: &[usize]| -> Result<[Tensor; 3]> {
        Ok([
            positive(shape, 1)?,
            positive(&shape[1..2], 2)?,
            positive(&shape[1..2], 3)?,
        ])
    };
    agree(
        &limit,
        &|x| group_norm::ours(x, 2),
        &|x| group_norm::candles(x, 2),
        &inputs(&[1, 4, LONG / 4])?,
    )?;
    agree(
        &limit,
        &|x| batch_norm::ours(x, true),
        &|x| batch_norm::candles(x, true),
        &inputs(&[4, 2, LONG / 8])?,
    )
}
