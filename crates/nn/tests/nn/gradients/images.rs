//! Pooling, resampling and convolutions of `nn::ops`, and what puts elements to other places.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::{WithGradients, ops};

use super::replacements::{Replacement, replacements};
use crate::candle_operations::{LAYOUTS, Verdict, case, judge};
use crate::check::{FLOATS, agrees, difference, numbers, rounding};

#[test]
fn gradients_are_slopes_in_all_layouts() {
    let (mut count, mut faults) = (0, vec![]);
    for replacement in replacements() {
        for (layout, twice) in LAYOUTS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let case = case(&replacement.ours, layout, twice);
            let judged = judge(&case, &Device::Cpu, DType::F64);
            count += 1;
            if judged.verdict != Verdict::Right {
                faults.push(format!("{}: {judged:?}", case.name));
            }
        }
    }
    println!("figure: gradients/replacement_cases = {count} cases");
    println!(
        "figure: gradients/replacement_cases_wrong = {} cases",
        faults.len()
    );
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn outputs_are_candles() -> Result<()> {
    for replacement in replacements() {
        let Some(candles) = replacement.candles else {
            continue;
        };
        for dtype in FLOATS {
            let inputs = candles.operands.iter().zip(1..);
            let inputs = inputs.map(|(operand, seed)| numbers(&operand.dims, seed).to_dtype(dtype));
            let inputs = inputs.collect::<Result<Vec<_>>>()?;
            let Ok(expected) = (candles.apply)(&inputs) else {
                // candle has no convolution of bf16 on the CPU.
                assert_eq!(dtype, DType::BF16, "{}", candles.name);
                continue;
            };
            let found = (replacement.ours.apply)(&inputs)?;
            assert_eq!(
                (found.dims(), found.dtype()),
                (expected.dims(), dtype),
                "{}",
                candles.name
            );
            let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64);
            let off = difference(&wide(&found)?, &wide(&expected)?);
            // Sums of candle's are rounded after each element.
            assert!(
                off <= 4. * rounding(dtype),
                "{}: {dtype:?} is {off:e} off",
                candles.name
            );
        }
    }
    Ok(())
}

/// f64 is right, as the differences show.
#[test]
fn each_type_agrees_with_f64() -> Result<()> {
    for replacement in replacements() {
        let operands = replacement.ours.operands.iter().zip(1..);
        let inputs: Vec<_> = operands
            .map(|(operand, seed)| numbers(&operand.dims, seed))
            .collect();
        let apply = &*replacement.ours.apply;
        println!("{}", replacement.ours.name);
        agrees(&|x| apply(x), &|x| apply(x), &inputs)?;
    }
    Ok(())
}

fn gradient_of_sum(x: &Var, y: &Tensor) -> Result<Vec<f32>> {
    let store = y.sum_all()?.backward()?;
    store.get(x).expect("a gradient").flatten_all()?.to_vec1()
}

#[test]
fn the_first_of_equal_elements_has_the_gradient() -> Result<()> {
    let x = Var::zeros((1, 1, 4, 4), DType::F32, &Device::Cpu)?;
    let gradient = gradient_of_sum(&x, &ops::max_pool2d(&x, 2, 2, 0)?)?;
    let first = [
        1., 0., 1., 0., //
        0., 0., 0., 0., //
        1., 0., 1., 0., //
        0., 0., 0., 0.,
    ];
    assert_eq!(gradient, first);
    // Nothing of the padding is the largest, also where all is below zero.
    let x = Var::from_tensor(&(x.as_tensor() - 1.)?)?;
    let y = ops::max_pool2d(&x, 3, 2, 1)?;
    assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [-1.; 4]);
    let first = [
        1., 1., 0., 0., //
        1., 1., 0., 0., //
        0., 0., 0., 0., //
        0., 0., 0., 0.,
    ];
    assert_eq!(gradient_of_sum(&x, &y)?, first);
    Ok(())
}

#[test]
fn an_infinite_element_stays_in_its_windows() -> Result<()> {
    let mut values = vec![1f32; 16];
    values[0] = f32::NEG_INFINITY;
    values[5] = f32::INFINITY;
    let x = Var::from_vec(values, (1, 1, 4, 4), &Device::Cpu)?;
    let y = ops::max_pool2d(&x, 2, 2, 0)?;
    assert_eq!(
        y.flatten_all()?.to_vec1::<f32>()?,
        [f32::INFINITY, 1., 1., 1.]
    );
    let gradient = gradient_of_sum(&x, &y)?;
    let received: Vec<_> = (0..16).filter(|&at| gradient[at] == 1.).collect();
    assert_eq!(received, [2, 5, 8, 10]);
    let y = ops::avg_pool2d(&x, 2, 2, 0)?
        .flatten_all()?
        .to_vec1::<f32>()?;
    assert!(y[0].is_nan() && y[1..] == [1.; 3], "{y:?}");
    Ok(())
}

#[test]
fn zeros_of_the_padding_count_in_a_mean() -> Result<()> {
    let x = numbers(&[2, 3, 5, 6], 1);
    let padded = x.pad_with_zeros(2, 1, 1)?.pad_with_zeros(3, 1, 1)?;
    let off = difference(
        &ops::avg_pool2d(&x, 3, 2, 1)?,
        &padded.avg_pool2d_with_stride(3, 2)?,
    );
    assert!(off < 1e-14, "{off:e}");
    Ok(())
}

#[test]
fn adaptive_windows_are_those_of_their_definition() -> Result<()> {
    let x = numbers(&[2, 3, 7, 9], 1);
    for (high, broad) in [(1, 1), (3, 4), (7, 9), (8, 11), (5, 2)] {
        let found = ops::adaptive_avg_pool2d(&x, (high, broad))?;
        assert_eq!(found.dims(), [2, 3, high, broad]);
        for (row, column) in (0..high).flat_map(|row| (0..broad).map(move |column| (row, column))) {
            let window = |at: usize, from: usize, to: usize| {
                let start = (at as f64 * from as f64 / to as f64).floor() as usize;
                let end = ((at + 1) as f64 * from as f64 / to as f64).ceil() as usize;
                (start, end - start)
            };
            let ((top, height), (left, width)) = (window(row, 7, high), window(column, 9, broad));
            let window = x.narrow(2, top, height)?.narrow(3, left, width)?;
            let mean = window.mean((2, 3))?;
            let element = found.narrow(2, row, 1)?.narrow(3, column, 1)?;
            let off = difference(&element.reshape((2, 3))?, &mean);
            assert!(off < 1e-13, "{high} x {broad} at {row}, {column}: {off:e}");
        }
    }
    Ok(())
}

#[test]
fn wrong_sizes_are_errors() {
    let (image, sequence) = (numbers(&[2, 3, 5, 6], 1), numbers(&[2, 3, 6], 2));
    for [kernel, stride, padding] in [[0, 1, 0], [2, 0, 0], [6, 1, 0], [3, 1, 2], [1, 1, 1]] {
        for error in [
            ops::max_pool2d(&image, kernel, stride, padding),
            ops::avg_pool2d(&image, kernel, stride, padding),
        ] {
            let error = error.expect_err("a wrong window");
            assert!(error.to_string().contains("pool2d: a window"), "{error}");
        }
    }
    let errors = [
        ops::max_pool2d(&sequence, 2, 2, 0),
        ops::avg_pool2d(&sequence, 2, 2, 0),
        ops::adaptive_avg_pool2d(&sequence, 2),
        ops::adaptive_avg_pool2d(&image, (0, 2)),
        ops::upsample_nearest1d(&image, 2),
        ops::upsample_nearest1d(&sequence, 0),
        ops::upsample_nearest2d(&sequence, 2, 2),
        ops::upsample_nearest2d(&image, 2, 0),
        ops::upsample_bilinear2d(&image, 0, 2, true),
        sequence.with_gradients().conv1d(&sequence, 0, 0, 1, 1),
        ops::unfold(&sequence, 3, 1, 1),
        ops::unfold(&sequence, 2, 7, 1),
        ops::unfold(&sequence, 2, 0, 1),
        ops::unfold(&sequence, 2, 1, 0),
        ops::scatter_add(&sequence, &sequence, &sequence, 0),
        ops::scatter(&sequence, &sequence, &image, 0),
    ];
    for (index, result) in errors.into_iter().enumerate() {
        assert!(result.is_err(), "{index}");
    }
}

#[test]
fn nothing_is_recorded_without_a_var() -> Result<()> {
    for replacement in replacements() {
        let operands = replacement.ours.operands.iter();
        let inputs: Vec<_> = operands.map(|operand| numbers(&operand.dims, 1)).collect();
        let y = (replacement.ours.apply)(&inputs)?;
        assert!(!y.track_op(), "{}", replacement.ours.name);
    }
    Ok(())
}

/// As a mixture of experts counts its tokens.
#[test]
fn integers_are_added_too() -> Result<()> {
    let x = Tensor::zeros(3, DType::U32, &Device::Cpu)?;
    let ids = Tensor::new(&[2u32, 0, 2], &Device::Cpu)?;
    let sum = ops::scatter_add(&x, &ids, &ids.ones_like()?, 0)?;
    assert_eq!(sum.to_vec1::<u32>()?, [1, 0, 2]);
    Ok(())
}

/// As an expert gets that no image is sent to.
#[test]
fn an_empty_batch_leaves_its_var_alone() -> Result<()> {
    let of_images = |name: &str| {
        name.contains("pool2d") || name.contains("sample") || name.contains("interpolate")
    };
    for Replacement { ours, .. } in replacements() {
        if !of_images(&ours.name) {
            continue;
        }
        let x = Var::ones(&*ours.operands[0].dims, DType::F32, &Device::Cpu)?;
        let y = (ours.apply)(&[x.narrow(0, 0, 0)?])?;
        assert_eq!((y.dim(0)?, y.elem_count()), (0, 0), "{}", ours.name);
        let store = (x.sum_all()? + y.sum_all()?)?.backward()?;
        let gradient = store.get(&x).expect("a gradient").flatten_all()?;
        assert_eq!(
            gradient.to_vec1::<f32>()?,
            vec![1.; x.elem_count()],
            "{}",
            ours.name
        );
    }
    Ok(())
}
