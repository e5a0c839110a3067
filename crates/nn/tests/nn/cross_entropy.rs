use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn as nn;

use crate::check::{agrees, agrees_with_differences, difference, numbers, rounding, same_bits};

fn targets(rows: usize, classes: usize) -> Result<Tensor> {
    let targets = (0..rows).map(|row| (row * 7 + 3) as u32 % classes as u32);
    Tensor::from_iter(targets, &Device::Cpu)
}

#[test]
fn agrees_with_plain_operations() -> Result<()> {
    for (rows, classes) in [(1, 1), (3, 5), (2, 33), (7, 300), (70, 200)] {
        let targets = targets(rows, classes)?;
        agrees(
            &|x| nn::loss::cross_entropy(&x[0], &targets),
            &|x| candle_nn::loss::cross_entropy(&x[0], &targets),
            // A gradient of zeros, of one class, has no scale to compare with.
            &[numbers(&[rows, classes.max(2)], 1)],
        )?;
    }
    let targets = targets(3, 7)?;
    agrees_with_differences(
        &|x| nn::loss::cross_entropy(&x[0], &targets),
        &[numbers(&[3, 7], 2)],
    )
}

#[test]
fn large_logits_cost_no_digits() -> Result<()> {
    let targets = targets(5, 40)?;
    for shift in [0., 1e3, 1e4, 1e5, -1e5] {
        let logits = (numbers(&[5, 40], 1) + shift)?.to_dtype(DType::F32)?;
        let found = gradient(|x| nn::loss::cross_entropy(x, &targets), &logits)?;
        let exact = gradient(
            |x| candle_nn::loss::cross_entropy(x, &targets),
            &logits.to_dtype(DType::F64)?,
        )?;
        let off = difference(&found.to_dtype(DType::F64)?, &exact);
        assert!(off <= rounding(DType::F32), "{shift}: {off:e} off");
    }
    Ok(())
}

#[test]
fn targets_of_all_types_give_the_same() -> Result<()> {
    let logits = numbers(&[9, 20], 1);
    let targets = targets(9, 20)?;
    let loss = nn::loss::cross_entropy(&logits, &targets)?;
    for dtype in [DType::U8, DType::I64] {
        let other = nn::loss::cross_entropy(&logits, &targets.to_dtype(dtype)?)?;
        same_bits(&loss, &other)?;
    }
    // Every other number of a wider tensor.
    let wide = Tensor::stack(&[&targets, &targets], 1)?;
    let strided = wide.narrow(1, 1, 1)?.squeeze(1)?;
    same_bits(&loss, &nn::loss::cross_entropy(&logits, &strided)?)
}

/// The gradient with respect to the logits.
fn gradient(loss: impl Fn(&Tensor) -> Result<Tensor>, logits: &Tensor) -> Result<Tensor> {
    let logits = Var::from_tensor(logits)?;
    let mut store = loss(&logits)?.backward()?;
    Ok(store.remove(&logits).expect("a gradient"))
}

/// The mean is over the others: candle divides by all rows.
#[test]
fn the_largest_number_is_no_target() -> Result<()> {
    let logits = numbers(&[4, 5], 1);
    let ours = |targets: &Tensor| gradient(|x| nn::loss::cross_entropy(x, targets), &logits);
    for targets in [
        Tensor::new(&[1u32, u32::MAX, 0, u32::MAX], &Device::Cpu)?,
        Tensor::new(&[1i64, i64::MAX, 0, i64::MAX], &Device::Cpu)?,
        Tensor::new(&[1u8, u8::MAX, 0, u8::MAX], &Device::Cpu)?,
    ] {
        let plain = (candle_nn::loss::cross_entropy(&logits, &targets)? * 2.)?;
        let loss = nn::loss::cross_entropy(&logits, &targets)?;
        assert!(difference(&loss, &plain) < 1e-12);
        let found = ours(&targets)?;
        let plain = |x: &Tensor| candle_nn::loss::cross_entropy(x, &targets)? * 2.;
        assert!(difference(&found, &gradient(plain, &logits)?) < 1e-12);
        assert_eq!(found.get(1)?.to_vec1::<f64>()?, [0.; 5]);
    }
    let none = Tensor::full(u32::MAX, 4, &Device::Cpu)?;
    let loss = nn::loss::cross_entropy(&logits, &none)?;
    assert_eq!(loss.to_scalar::<f64>()?, 0.);
    assert_eq!(ours(&none)?.abs()?.max_all()?.to_scalar::<f64>()?, 0.);
    Ok(())
}

#[test]
fn a_target_out_of_range_is_an_error_that_names_it() -> Result<()> {
    let logits = numbers(&[3, 5], 1);
    let message = |targets: &Tensor| match nn::loss::cross_entropy(&logits, targets) {
        Ok(loss) => panic!("{targets} gives {loss}"),
        Err(error) => error.to_string(),
    };
    let high = message(&Tensor::new(&[0u32, 4, 5], &Device::Cpu)?);
    assert!(high.contains("row 2 is 5, there are 5 classes"), "{high}");
    let low = message(&Tensor::new(&[0i64, -1, 2], &Device::Cpu)?);
    assert!(low.contains("row 1 is -1, there are 5 classes"), "{low}");
    Ok(())
}

#[test]
fn large_logits_stay_finite() -> Result<()> {
    let targets = Tensor::new(&[0u32, 1], &Device::Cpu)?;
    let logits = Tensor::new(
        &[[1e4f32, -1e4, 0.], [f32::NEG_INFINITY, 3., 2.]],
        &Device::Cpu,
    )?;
    let loss = nn::loss::cross_entropy(&logits, &targets)?.to_scalar::<f32>()?;
    // The first row's is 0, the second's ln(1 + 1/e).
    let exact = (1. + (-1f64).exp()).ln() / 2.;
    assert!((f64::from(loss) - exact).abs() < 1e-6, "{loss} for {exact}");
    let gradient = gradient(|x| nn::loss::cross_entropy(x, &targets), &logits)?;
    let gradient = gradient.to_vec2::<f32>()?;
    assert_eq!(gradient[0], [0.; 3]);
    assert_eq!(gradient[1][0], 0.);
    let nan = Tensor::new(&[[f32::NAN, 0.], [0., 0.]], &Device::Cpu)?;
    assert!(
        nn::loss::cross_entropy(&nan, &targets)?
            .to_scalar::<f32>()?
            .is_nan()
    );
    Ok(())
}

#[test]
fn wrong_shapes_and_types_are_errors() -> Result<()> {
    let logits = numbers(&[3, 5], 1);
    let refused =
        |logits: &Tensor, targets: &Tensor| nn::loss::cross_entropy(logits, targets).is_err();
    assert!(refused(&logits, &targets(2, 5)?));
    assert!(refused(&logits, &targets(3, 5)?.unsqueeze(1)?));
    assert!(refused(&logits, &targets(3, 5)?.to_dtype(DType::F32)?));
    assert!(refused(&numbers(&[15], 1), &targets(3, 5)?));
    assert!(refused(&logits.to_dtype(DType::U32)?, &targets(3, 5)?));
    assert!(refused(
        &Tensor::zeros((0, 5), DType::F32, &Device::Cpu)?,
        &targets(0, 5)?
    ));
    assert!(refused(
        &Tensor::zeros((3, 0), DType::F32, &Device::Cpu)?,
        &targets(3, 5)?
    ));
    Ok(())
}
