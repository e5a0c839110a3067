use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::ops;

use crate::check::{agrees, agrees_with_differences, numbers};

#[test]
fn add_agrees_with_plain_operations() -> Result<()> {
    let add = |inputs: &[Tensor]| ops::add(&inputs[0], &inputs[1]);
    let plain = |inputs: &[Tensor]| &inputs[0] + &inputs[1];
    agrees(
        &add,
        &plain,
        &[numbers(&[3, 4, 5], 1), numbers(&[3, 4, 5], 2)],
    )
}

#[test]
fn silu_mul_agrees_with_plain_operations() -> Result<()> {
    let ours = |inputs: &[Tensor]| ops::silu_mul(&inputs[0], &inputs[1]);
    let plain = |inputs: &[Tensor]| inputs[0].silu()? * &inputs[1];
    let inputs = [numbers(&[3, 4, 5], 1), numbers(&[3, 4, 5], 2)];
    agrees(&ours, &plain, &inputs)?;
    agrees_with_differences(&ours, &inputs)
}

#[test]
fn one_tensor_may_be_both() -> Result<()> {
    let x = Var::new(&[1f64, -2., 3.], &Device::Cpu)?;
    // Its gradient arrives twice, and again by another way.
    let twice = ops::add(&x, &x)?;
    let loss = ops::add(&twice, &ops::silu_mul(&twice, &twice)?)?.sum_all()?;
    let found = loss.backward()?;
    let plain = (x.as_tensor() * 2.)?;
    let expected = (&plain + (plain.silu()? * &plain)?)?
        .sum_all()?
        .backward()?;
    let [found, expected] = [found, expected].map(|store| store.get(&x).unwrap().to_vec1::<f64>());
    for (found, expected) in found?.into_iter().zip(expected?) {
        assert!((found - expected).abs() < 1e-12, "{found} {expected}");
    }
    Ok(())
}

#[test]
fn one_may_be_constant() -> Result<()> {
    let x = Var::ones((2, 3), DType::F32, &Device::Cpu)?;
    let constant = Tensor::full(2f32, (2, 3), &Device::Cpu)?;
    for output in [ops::add(&x, &constant)?, ops::silu_mul(&constant, &x)?] {
        let gradients = output.sum_all()?.backward()?;
        assert!(gradients.get(&x).is_some() && gradients.get(&constant).is_none());
    }
    assert!(!ops::add(&constant, &constant)?.track_op());
    Ok(())
}

#[test]
fn other_shapes_and_types_are_refused() -> Result<()> {
    let a = Var::ones((2, 3), DType::F32, &Device::Cpu)?;
    for b in [a.narrow(1, 0, 1)?, a.to_dtype(DType::F64)?] {
        assert!(ops::add(&a, &b).is_err());
        assert!(ops::silu_mul(&a, &b).is_err());
    }
    let integers = Tensor::ones((2, 3), DType::U32, &Device::Cpu)?;
    assert!(ops::silu_mul(&integers, &integers).is_err());
    Ok(())
}
