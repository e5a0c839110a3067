use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::{self as nn, LayerNorm, Module, RmsNorm, VarBuilder};

use crate::check::{FLOATS, agrees, agrees_with_differences, differentiate, numbers, same_bits};
use crate::check::{Operation, STRIDES, Strides, agrees_within, difference, rounding};

const EPS: f32 = 1e-5;

/// Rows shorter and longer than the lanes of a sum, few and many rows, and one of each.
const SHAPES: [&[usize]; 6] = [
    &[3, 5],
    &[2, 3, 33],
    &[7],
    &[2, 2, 3, 257],
    &[300, 16],
    &[1, 1000],
];

fn inputs(shape: &[usize]) -> [Tensor; 3] {
    let width = shape[shape.len() - 1];
    [
        numbers(shape, 1),
        numbers(&[width], 2),
        numbers(&[width], 3),
    ]
}

#[test]
fn rms_norm_agrees_with_plain_operations() -> Result<()> {
    // The gradient of a single element is of the size of eps: a smaller one would be compared with rounding.
    let [xs, alpha, _] = inputs(&[4, 1]);
    agrees(
        &|x| nn::ops::rms_norm(&x[0], &x[1], 1.),
        &|x| candle_nn::ops::rms_norm_slow(&x[0], &x[1], 1.),
        &[xs, alpha],
    )?;
    for shape in SHAPES {
        let [xs, alpha, _] = inputs(shape);
        let inputs = [xs, alpha];
        let plain = |x: &[Tensor]| candle_nn::ops::rms_norm_slow(&x[0], &x[1], EPS);
        agrees(&|x| nn::ops::rms_norm(&x[0], &x[1], EPS), &plain, &inputs)?;
        agrees(
            &|x| nn::ops::rms_norm_slow(&x[0], &x[1], EPS),
            &plain,
            &inputs,
        )?;
        agrees(
            &|x| RmsNorm::new(x[1].clone(), EPS.into()).forward(&x[0]),
            &plain,
            &inputs,
        )?;
        agrees(
            &|x| RmsNorm::new(x[1].clone(), EPS.into()).forward_diff(&x[0]),
            &plain,
            &inputs,
        )?;
    }
    Ok(())
}

#[test]
fn layer_norm_agrees_with_plain_operations() -> Result<()> {
    for shape in SHAPES {
        let inputs = inputs(shape);
        let plain = |x: &[Tensor]| candle_nn::ops::layer_norm_slow(&x[0], &x[1], &x[2], EPS);
        agrees(
            &|x| nn::ops::layer_norm(&x[0], &x[1], &x[2], EPS),
            &plain,
            &inputs,
        )?;
        agrees(
            &|x| nn::ops::layer_norm_slow(&x[0], &x[1], &x[2], EPS),
            &plain,
            &inputs,
        )?;
        let layer = |x: &[Tensor]| LayerNorm::new(x[1].clone(), x[2].clone(), EPS.into());
        agrees(&|x| layer(x).forward(&x[0]), &plain, &inputs)?;
    }
    Ok(())
}

#[test]
fn layer_norm_without_bias_agrees_with_candles_composition() -> Result<()> {
    for shape in SHAPES {
        let [xs, weight, _] = inputs(shape);
        agrees(
            &|x| LayerNorm::new_no_bias(x[1].clone(), EPS.into()).forward(&x[0]),
            &|x| candle_nn::LayerNorm::new_no_bias(x[1].clone(), EPS.into()).forward(&x[0]),
            &[xs, weight],
        )?;
    }
    Ok(())
}

#[test]
fn gradients_are_differences() -> Result<()> {
    let [xs, alpha, beta] = inputs(&[3, 6]);
    let eps = 0.1;
    agrees_with_differences(
        &|x| nn::ops::layer_norm(&x[0], &x[1], &x[2], eps),
        &[xs.clone(), alpha.clone(), beta],
    )?;
    let inputs = [xs, alpha];
    agrees_with_differences(&|x| nn::ops::rms_norm(&x[0], &x[1], eps), &inputs)?;
    agrees_with_differences(
        &|x| LayerNorm::new_no_bias(x[1].clone(), 0.1).forward(&x[0]),
        &inputs,
    )
}

/// What is computed with the sum and its norm: both with other gradients, or the norm alone.
const USES: [fn(Tensor, Tensor) -> Result<Tensor>; 2] =
    [|sum, ys| sum + (ys * 2.)?, |_, ys| Ok(ys)];

#[test]
fn a_sum_and_its_norm_agree_with_plain_operations() -> Result<()> {
    for (shape, uses) in SHAPES
        .iter()
        .flat_map(|shape| USES.map(|uses| (shape, uses)))
    {
        let [xs, alpha, beta] = inputs(shape);
        let inputs = [xs, numbers(shape, 4), alpha, beta];
        let layer = |x: &[Tensor]| {
            let norm = LayerNorm::new(x[2].clone(), x[3].clone(), EPS.into());
            let (sum, ys) = norm.forward_residual(&x[0], &x[1])?;
            uses(sum, ys)
        };
        let plain = |x: &[Tensor]| {
            let sum = (&x[0] + &x[1])?;
            let ys = candle_nn::ops::layer_norm_slow(&sum, &x[2], &x[3], EPS)?;
            uses(sum, ys)
        };
        agrees(&layer, &plain, &inputs)?;
        let rms = |x: &[Tensor]| {
            let norm = RmsNorm::new(x[2].clone(), EPS.into());
            let (sum, ys) = norm.forward_residual(&x[0], &x[1])?;
            uses(sum, ys)
        };
        let plain = |x: &[Tensor]| {
            let sum = (&x[0] + &x[1])?;
            let ys = candle_nn::ops::rms_norm_slow(&sum, &x[2], EPS)?;
            uses(sum, ys)
        };
        agrees(&rms, &plain, &inputs[..3])?;
    }
    Ok(())
}

#[test]
fn a_sum_whose_norm_nobody_uses_hands_its_gradient_on() -> Result<()> {
    let [xs, alpha, _] = inputs(&[3, 5]);
    let [xs, residual, alpha] = [&xs, &numbers(&[3, 5], 4), &alpha].map(Var::from_tensor);
    let (xs, residual, alpha) = (xs?, residual?, alpha?);
    let norm = RmsNorm::new(alpha.as_tensor().clone(), EPS.into());
    let (sum, _) = norm.forward_residual(&xs, &residual)?;
    let factors = numbers(&[3, 5], 5);
    let store = (sum * &factors)?.sum_all()?.backward()?;
    for var in [&xs, &residual] {
        same_bits(store.get(var).expect("a gradient"), &factors)?;
    }
    same_bits(store.get(&alpha).expect("zeros"), &alpha.zeros_like()?)
}

#[test]
fn a_residual_of_another_shape_type_or_width_of_parameters() -> Result<()> {
    let norm = RmsNorm::new(Tensor::ones(4, DType::F32, &Device::Cpu)?, 0.);
    let xs = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?;
    for residual in [xs.narrow(0, 0, 1)?, xs.to_dtype(DType::F64)?] {
        assert!(norm.forward_residual(&xs, &residual).is_err());
    }
    // A weight that is broadcast, as in `forward`.
    let norm = RmsNorm::new(Tensor::new(3f32, &Device::Cpu)?, 0.);
    let (sum, ys) = norm.forward_residual(&xs, &xs)?;
    assert_eq!(sum.to_vec2::<f32>()?, [[2.; 4]; 2]);
    assert_eq!(ys.to_vec2::<f32>()?, [[3.; 4]; 2]);
    Ok(())
}

#[test]
fn gradients_do_not_depend_on_the_number_of_threads() -> Result<()> {
    let inputs = inputs(&[700, 130]).map(|input| input.to_dtype(DType::F32));
    let [xs, alpha, beta] = inputs;
    let inputs = [xs?, alpha?, beta?];
    let gradients = || {
        let operation = |x: &[Tensor]| nn::ops::layer_norm(&x[0], &x[1], &x[2], EPS);
        differentiate(&operation, &inputs, Strides::Contiguous)
    };
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.expect("threads").install(gradients)
    };
    let (_, one) = on(1)?;
    let (_, three) = on(3)?;
    for (one, three) in one.iter().zip(&three) {
        same_bits(one, three)?;
    }
    Ok(())
}

#[test]
fn sums_over_many_rows_of_half_precision_stay_exact() -> Result<()> {
    // Summed in f16, a sum of ones stops at 2048.
    for dtype in [DType::F16, DType::BF16] {
        let xs = Tensor::ones((4096, 2), dtype, &Device::Cpu)?;
        let bias = Var::zeros(2, dtype, &Device::Cpu)?;
        let weight = Tensor::ones(2, dtype, &Device::Cpu)?;
        let ys = nn::ops::layer_norm(&xs, &weight, &bias, EPS)?;
        let store = ys.to_dtype(DType::F32)?.sum_all()?.backward()?;
        let gradient = store.get(&bias).expect("a gradient");
        assert_eq!(
            gradient.to_dtype(DType::F64)?.to_vec1::<f64>()?,
            [4096., 4096.]
        );
    }
    Ok(())
}

#[test]
fn a_frozen_weight_receives_nothing() -> Result<()> {
    for dtype in FLOATS {
        let [xs, alpha, beta] = inputs(&[9, 20]);
        let (alpha, beta) = (alpha.to_dtype(dtype)?, beta.to_dtype(dtype)?);
        let xs = Var::from_tensor(&xs.to_dtype(dtype)?)?;
        let both = |x: &Tensor, alpha: &Tensor, beta: &Tensor| -> Result<Tensor> {
            let ys = nn::ops::layer_norm(x, alpha, beta, EPS)?;
            ys.sqr()?.sum_all()
        };
        let store = both(&xs, &alpha, &beta)?.backward()?;
        assert!(store.get(&alpha).is_none() && store.get(&beta).is_none());
        let trained = [Var::from_tensor(&alpha)?, Var::from_tensor(&beta)?];
        let all = both(&xs, &trained[0], &trained[1])?.backward()?;
        let gradients = [store.get(&xs), all.get(&xs)].map(|gradient| gradient.expect("gradient"));
        same_bits(gradients[0], gradients[1])?;
    }
    Ok(())
}

#[test]
fn an_input_that_is_not_trained_leaves_the_weights_gradient() -> Result<()> {
    let [xs, alpha, _] = inputs(&[40, 9]);
    let weight = Var::from_tensor(&alpha)?;
    let gradient = |of: &dyn Fn(&Tensor) -> Result<Tensor>| -> Result<Tensor> {
        let store = (of(&weight)? * numbers(&[40, 9], 5))?
            .sum_all()?
            .backward()?;
        Ok(store.get(&weight).expect("a gradient").clone())
    };
    let found = gradient(&|weight| nn::ops::rms_norm(&xs, weight, EPS))?;
    let plain = gradient(&|weight| candle_nn::ops::rms_norm_slow(&xs, weight, EPS))?;
    assert!(difference(&found, &plain) < 1e-12);
    Ok(())
}

/// candle's fused operation gives NaN from a mean of 1e4 on.
#[test]
fn a_large_mean_costs_no_digits() -> Result<()> {
    for mean in [1e2, 1e4, 1e6, -1e7] {
        let xs = (numbers(&[6, 64], 1) + mean)?.to_dtype(DType::F32)?;
        let [_, alpha, beta] = inputs(&[6, 64]);
        let plain = |x: &[Tensor]| candle_nn::ops::layer_norm_slow(&x[0], &x[1], &x[2], EPS);
        let exact = [xs.to_dtype(DType::F64)?, alpha.clone(), beta.clone()];
        let (alpha, beta) = (alpha.to_dtype(DType::F32)?, beta.to_dtype(DType::F32)?);
        let typed = [xs, alpha, beta];
        let exact = [
            exact[0].clone(),
            typed[1].to_dtype(DType::F64)?,
            typed[2].to_dtype(DType::F64)?,
        ];
        let layer =
            |x: &[Tensor]| LayerNorm::new(x[1].clone(), x[2].clone(), EPS.into()).forward(&x[0]);
        let function = |x: &[Tensor]| nn::ops::layer_norm(&x[0], &x[1], &x[2], EPS);
        let functions: [Operation; 2] = [&layer, &function];
        for strides in STRIDES {
            let (expected, plain) = differentiate(&plain, &exact, strides)?;
            for operation in functions {
                let (found, gradients) = differentiate(operation, &typed, strides)?;
                let off = difference(&found, &expected);
                assert!(off < 1e-6, "{mean:e}, {strides:?}: {off:e} off");
                for (found, plain) in gradients.iter().zip(&plain) {
                    let off = difference(found, plain);
                    assert!(off < 1e-5, "{mean:e}, {strides:?}: gradient {off:e} off");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn layers_come_from_the_tensors_that_candle_accepts() -> Result<()> {
    let tensors = |weight: &str, bias: &str| {
        let [_, alpha, beta] = inputs(&[1, 8]);
        let tensors = [(weight.to_string(), alpha), (bias.to_string(), beta)];
        VarBuilder::from_tensors(tensors.into_iter().collect(), DType::F64, &Device::Cpu)
    };
    let [xs, alpha, beta] = inputs(&[4, 8]);
    for (weight, bias) in [("weight", "bias"), ("gamma", "beta")] {
        let layer = nn::layer_norm(8, 1e-3, tensors(weight, bias))?;
        same_bits(layer.weight(), &alpha)?;
        same_bits(layer.bias().expect("a bias"), &beta)?;
        assert!(layer.remove_mean() && layer.eps() == 1e-3);
        let layer = nn::layer_norm_no_bias(8, 1e-3, tensors(weight, bias))?;
        assert!(layer.bias().is_none() && layer.remove_mean());
        let rms = nn::rms_norm(8, 1e-3, tensors(weight, bias))?;
        let inner: nn::layer_norm::LayerNorm = rms.clone().into_inner();
        assert!(!inner.remove_mean() && inner.bias().is_none());
        same_bits(&rms.forward(&xs)?, &inner.forward(&xs)?)?;
    }
    let without_mean = nn::LayerNormConfig {
        eps: 1e-3,
        remove_mean: false,
        affine: true,
    };
    let layer = nn::layer_norm(8, without_mean, tensors("weight", "bias"))?;
    let candles = candle_nn::layer_norm(8, without_mean, tensors("weight", "bias"))?;
    assert!(difference(&layer.forward(&xs)?, &candles.forward(&xs)?) < 1e-12);
    assert!(nn::rms_norm(9, 1e-3, tensors("weight", "bias")).is_err());
    Ok(())
}

#[test]
fn odd_inputs_are_errors_or_empty() -> Result<()> {
    let [xs, alpha, beta] = inputs(&[3, 5]);
    let scalar = Tensor::new(1f64, &Device::Cpu)?;
    let other = numbers(&[4], 1);
    assert!(nn::ops::rms_norm(&scalar, &alpha, EPS).is_err());
    assert!(nn::ops::rms_norm_slow(&scalar, &alpha, EPS).is_err());
    assert!(RmsNorm::new(alpha.clone(), 1e-5).forward(&scalar).is_err());
    for error in [
        nn::ops::rms_norm(&xs, &other, EPS),
        nn::ops::layer_norm(&xs, &alpha, &other, EPS),
        LayerNorm::new(other.clone(), beta.clone(), 1e-5).forward(&xs),
    ] {
        let text = error.expect_err("another width").to_string();
        assert!(text.contains("[3, 5]") && text.contains("[4]"), "{text}");
    }
    let single = alpha.to_dtype(DType::F32)?;
    for error in [
        nn::ops::rms_norm(&xs, &single, EPS),
        LayerNorm::new(alpha.clone(), beta.to_dtype(DType::F16)?, 1e-5).forward(&xs),
        LayerNorm::new_no_bias(single, 1e-5).forward(&xs),
    ] {
        let text = error.expect_err("another type").to_string();
        assert!(
            text.contains("F64") && (text.contains("F32") || text.contains("F16")),
            "{text}"
        );
    }
    let whole = Tensor::ones((2, 3), DType::U32, &Device::Cpu)?;
    let ones = Tensor::ones(3, DType::U32, &Device::Cpu)?;
    assert!(nn::ops::rms_norm(&whole, &ones, EPS).is_err());

    for shape in [(0, 5), (3, 0)] {
        let xs = Var::zeros(shape, DType::F32, &Device::Cpu)?;
        let alpha = Var::ones(shape.1, DType::F32, &Device::Cpu)?;
        let ys = nn::ops::layer_norm(&xs, &alpha, &alpha, EPS)?;
        assert_eq!(ys.dims(), xs.dims());
        let store = ys.sum_all()?.backward()?;
        assert_eq!(store.get(&xs).expect("a gradient").dims(), xs.dims());
        assert_eq!(
            store.get(&alpha).expect("a gradient").to_vec1::<f32>()?,
            vec![0.; shape.1]
        );
    }
    Ok(())
}

/// candle's layers broadcast them for strided inputs, and refuse them for contiguous ones if there is a bias.
#[test]
fn weights_of_other_shapes_are_broadcast_however_the_input_lies() -> Result<()> {
    let inputs = [
        numbers(&[3, 5], 1),
        numbers(&[3, 1], 2),
        numbers(&[3, 5], 3),
    ];
    let scaled = |x: &[Tensor]| {
        let ones = Tensor::ones(5, DType::F64, &Device::Cpu)?;
        let zeros = ones.zeros_like()?;
        let normal = candle_nn::ops::layer_norm_slow(&x[0], &ones, &zeros, EPS)?;
        normal.broadcast_mul(&x[1])?.broadcast_add(&x[2])
    };
    let layer = |x: &[Tensor]| LayerNorm::new(x[1].clone(), x[2].clone(), EPS.into());
    // The product and the sum are rounded as well.
    let limit = |dtype| 3. * rounding(dtype);
    agrees_within(&limit, &|x| layer(x).forward(&x[0]), &scaled, &inputs)?;
    let [xs, alpha, _] = inputs;
    let rms = RmsNorm::new(alpha.clone(), EPS.into()).forward(&xs)?;
    let plain = candle_nn::ops::rms_norm_slow(&xs, &alpha, EPS)?;
    assert!(difference(&rms, &plain) < 1e-12);
    let error = nn::ops::rms_norm_slow(&xs, &alpha, EPS).expect_err("another shape");
    let text = error.to_string();
    assert!(text.contains("[3, 5]") && text.contains("[3, 1]"), "{text}");
    Ok(())
}
