use candle_core::{D, DType, Device, Result, Tensor};
use candle_headroom_nn as nn;

use crate::check::{FLOATS, agrees, agrees_with_differences, numbers, same_bits};

#[test]
fn softmax_last_dim_agrees_with_plain_operations() -> Result<()> {
    for shape in [
        &[3, 5][..],
        &[2, 3, 33],
        &[1, 1],
        &[2, 2, 3, 257],
        &[70, 200],
    ] {
        agrees(
            &|x| nn::ops::softmax_last_dim(&x[0]),
            &|x| candle_nn::ops::softmax(&x[0], D::Minus1),
            &[numbers(shape, 1)],
        )?;
    }
    agrees_with_differences(
        &|x| nn::ops::softmax_last_dim(&x[0]),
        &[numbers(&[3, 7], 2)],
    )
}

#[test]
fn softmax_last_dim_is_softmax_of_the_last_dimension() -> Result<()> {
    for dtype in FLOATS {
        let xs = numbers(&[50, 37], 3).to_dtype(dtype)?;
        same_bits(&nn::ops::softmax_last_dim(&xs)?, &nn::ops::softmax(&xs, 1)?)?;
    }
    Ok(())
}

#[test]
fn odd_inputs_are_errors_or_empty() -> Result<()> {
    let empty = Tensor::zeros((0, 4), DType::F32, &Device::Cpu)?;
    assert_eq!(nn::ops::softmax_last_dim(&empty)?.dims(), [0, 4]);
    assert!(nn::ops::softmax_last_dim(&Tensor::new(1f32, &Device::Cpu)?).is_err());
    assert!(nn::ops::softmax_last_dim(&Tensor::new(&[1u32], &Device::Cpu)?).is_err());
    Ok(())
}
