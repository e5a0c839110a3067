use candle_core::{D, DType, Device, Result, Tensor};
use candle_headroom_nn::ops;

use crate::check::{agrees, agrees_with_differences, numbers};

#[test]
fn agree_with_plain_operations_over_every_dimension() -> Result<()> {
    for shape in [
        &[7][..],
        &[3, 5],
        &[2, 3, 33],
        &[2, 2, 3, 257],
        &[70, 200],
        &[1, 1],
    ] {
        for dim in 0..shape.len() {
            let inputs = [numbers(shape, 1)];
            agrees(
                &|x| ops::softmax(&x[0], dim),
                &|x| candle_nn::ops::softmax(&x[0], dim),
                &inputs,
            )?;
            if shape[dim] > 1 {
                agrees(
                    &|x| ops::log_softmax(&x[0], dim),
                    &|x| candle_nn::ops::log_softmax(&x[0], dim),
                    &inputs,
                )?;
            }
        }
    }
    for dim in 0..3 {
        let inputs = [numbers(&[3, 4, 2], 2)];
        agrees_with_differences(&|x| ops::softmax(&x[0], dim), &inputs)?;
        agrees_with_differences(&|x| ops::log_softmax(&x[0], dim), &inputs)?;
    }
    Ok(())
}

#[test]
fn half_precision_is_rounded_once() -> Result<()> {
    // Half a unit in the last place, and the rounding of f32.
    for (dtype, unit) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
        let xs = numbers(&[40, 50], 1).to_dtype(dtype)?;
        for dim in 0..2 {
            let found = ops::softmax(&xs, dim)?.to_dtype(DType::F64)?;
            let exact = candle_nn::ops::softmax(&xs.to_dtype(DType::F64)?, dim)?;
            let off = ((found - &exact)? / exact)?.abs()?.max_all()?;
            let off = off.to_scalar::<f64>()? / unit;
            assert!(off <= 1.001, "{dtype:?}: {off} times half a unit");
        }
    }
    Ok(())
}

#[test]
fn a_masked_row_gives_zeros() -> Result<()> {
    let masked = Tensor::new(&[f32::NEG_INFINITY, 1e4, 1e4], &Device::Cpu)?;
    assert_eq!(ops::softmax(&masked, 0)?.to_vec1::<f32>()?, [0., 0.5, 0.5]);
    Ok(())
}

#[test]
fn the_output_is_contiguous() -> Result<()> {
    let xs = numbers(&[3, 4, 5], 1);
    for dim in 0..3 {
        assert!(ops::softmax(&xs, dim)?.is_contiguous());
    }
    Ok(())
}

#[test]
fn odd_inputs_are_errors_or_empty() -> Result<()> {
    let empty = Tensor::zeros((0, 4), DType::F32, &Device::Cpu)?;
    assert_eq!(ops::softmax(&empty, 0)?.dims(), [0, 4]);
    assert!(ops::softmax(&empty, 2).is_err());
    assert!(ops::log_softmax(&Tensor::new(1f32, &Device::Cpu)?, D::Minus1).is_err());
    assert!(ops::softmax(&Tensor::new(&[1u32], &Device::Cpu)?, 0).is_err());
    Ok(())
}
