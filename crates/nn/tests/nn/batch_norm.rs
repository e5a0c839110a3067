use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom_nn::batch_norm::{BatchNorm, BatchNormConfig};
use candle_headroom_nn::{self as nn, ModuleT, VarBuilder, VarMap};

use crate::check::{agrees, agrees_with_differences, difference, numbers, same_bits};

const EPS: f64 = 1e-3;

fn inputs(shape: &[usize]) -> [Tensor; 3] {
    [
        numbers(shape, 1),
        numbers(&[shape[1]], 2),
        numbers(&[shape[1]], 3),
    ]
}

/// A running mean and variance for inputs of a type.
fn running(channels: usize, dtype: DType) -> Result<[Tensor; 2]> {
    let dtype = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let variance = (numbers(&[channels], 5).abs()? + 0.5)?;
    Ok([
        numbers(&[channels], 4).to_dtype(dtype)?,
        variance.to_dtype(dtype)?,
    ])
}

pub fn ours(x: &[Tensor], train: bool) -> Result<Tensor> {
    let channels = x[0].dim(1)?;
    let [mean, variance] = running(channels, x[0].dtype())?;
    let norm = match x {
        [_, weight, bias] => {
            BatchNorm::new(channels, mean, variance, weight.clone(), bias.clone(), EPS)
        }
        _ => BatchNorm::new_no_bias(channels, mean, variance, EPS),
    };
    norm?.forward_t(&x[0], train)
}

pub fn candles(x: &[Tensor], train: bool) -> Result<Tensor> {
    use candle_nn::BatchNorm;
    let channels = x[0].dim(1)?;
    let [mean, variance] = running(channels, x[0].dtype())?;
    let norm = match x {
        [_, weight, bias] => {
            BatchNorm::new(channels, mean, variance, weight.clone(), bias.clone(), EPS)
        }
        _ => BatchNorm::new_no_bias(channels, mean, variance, EPS),
    };
    norm?.forward_t(&x[0], train)
}

#[test]
fn agrees_with_candles_composition() -> Result<()> {
    for shape in [
        &[7, 3][..],
        &[2, 3, 5],
        &[4, 1, 3, 7],
        &[1, 6, 11],
        &[2, 2, 2, 3, 5],
        &[3, 4, 33, 40],
    ] {
        for train in [true, false] {
            let inputs = inputs(shape);
            agrees(&|x| ours(x, train), &|x| candles(x, train), &inputs)?;
            agrees(&|x| ours(x, train), &|x| candles(x, train), &inputs[..1])?;
        }
    }
    for train in [true, false] {
        agrees_with_differences(&|x| ours(x, train), &inputs(&[3, 2, 4]))?;
    }
    Ok(())
}

/// candle's layer and ours with the same variables' values, and ours' variables.
fn layers(config: BatchNormConfig) -> Result<(BatchNorm, candle_nn::BatchNorm, VarMap)> {
    let (of_ours, of_candle) = (VarMap::new(), VarMap::new());
    let builder = |map: &VarMap| VarBuilder::from_varmap(map, DType::F32, &Device::Cpu);
    let layer = nn::batch_norm(4, config, builder(&of_ours))?;
    let candles = candle_nn::batch_norm(4, config, builder(&of_candle))?;
    Ok((layer, candles, of_ours))
}

#[test]
fn running_statistics_move_as_candles_do() -> Result<()> {
    let config = |remove_mean, affine| BatchNormConfig {
        remove_mean,
        affine,
        momentum: 0.3,
        eps: EPS,
    };
    for (remove_mean, affine) in [(true, true), (false, true), (true, false)] {
        let (layer, candles, map) = layers(config(remove_mean, affine))?;
        assert_eq!((layer.momentum(), layer.eps()), (0.3, EPS));
        assert_eq!(layer.weight_and_bias().is_some(), affine);
        for step in 0..3 {
            let xs = numbers(&[5, 4, 6], step).to_dtype(DType::F32)?;
            let (found, expected) = (layer.forward_train(&xs)?, candles.forward_train(&xs)?);
            let pairs = [
                (&found, &expected),
                (layer.running_mean(), candles.running_mean()),
                (layer.running_var(), candles.running_var()),
            ];
            for (found, expected) in pairs {
                // Sums of 30 values in another order.
                let off = difference(
                    &found.to_dtype(DType::F64)?,
                    &expected.to_dtype(DType::F64)?,
                );
                assert!(off < 2e-6, "{off:e} off");
            }
        }
        // They are the variables of the map, and a layer's clone shares them.
        let data = map.data().lock().expect("variables");
        same_bits(&data["running_mean"], layer.running_mean())?;
        same_bits(&data["running_var"], layer.clone().running_var())?;
        assert_eq!(data["running_var"].id(), layer.running_var().id());
        let before = layer.running_var().copy()?;
        layer.forward_t(&numbers(&[5, 4, 6], 9).to_dtype(DType::F32)?, false)?;
        same_bits(layer.running_var(), &before)?;
    }
    Ok(())
}

#[test]
fn half_precision_takes_running_statistics_of_any_type() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let [xs, weight, bias] = inputs(&[8, 3, 5]).map(|input| input.to_dtype(dtype));
        let [mean, variance] = running(3, dtype)?;
        let (mean, variance) = (mean.to_dtype(dtype)?, variance.to_dtype(dtype)?);
        let norm = BatchNorm::new(3, mean, variance, weight?, bias?, EPS)?;
        let xs = xs?;
        for train in [true, false] {
            assert_eq!(norm.forward_t(&xs, train)?.dtype(), dtype);
        }
        assert_eq!(norm.running_var().dtype(), dtype);
    }
    Ok(())
}

#[test]
fn odd_inputs_are_errors_and_leave_the_statistics() -> Result<()> {
    let (layer, _, _) = layers(BatchNormConfig::default())?;
    let before = layer.running_var().copy()?;
    for shape in [&[][..], &[4], &[2, 5, 3], &[1, 4], &[0, 4], &[1, 4, 1, 1]] {
        let xs = numbers(shape, 1).to_dtype(DType::F32)?;
        let error = layer.forward_train(&xs).expect_err("a wrong shape");
        assert!(error.to_string().contains(&format!("{shape:?}")), "{error}");
    }
    let double = numbers(&[2, 4, 3], 1);
    assert!(layer.forward_train(&double).is_err());
    assert!(layer.forward_t(&double, false).is_err());
    same_bits(layer.running_var(), &before)?;
    let ones = Tensor::ones(3, DType::F32, &Device::Cpu)?;
    for (channels, eps, momentum) in [(4, 1e-5, 0.1), (3, -1., 0.1), (3, 1e-5, 1.5)] {
        let (mean, variance) = (ones.clone(), ones.clone());
        let norm = BatchNorm::new_no_bias_with_momentum(channels, mean, variance, eps, momentum);
        assert!(norm.is_err());
    }
    for momentum in [-0.1, 1.5, f64::NAN] {
        let config = BatchNormConfig {
            momentum,
            ..Default::default()
        };
        let vb = VarBuilder::zeros(DType::F32, &Device::Cpu);
        let error = nn::batch_norm(4, config, vb).expect_err("candle takes it");
        assert!(error.to_string().contains(&momentum.to_string()), "{error}");
    }
    let empty = Var::zeros((0, 4, 2), DType::F32, &Device::Cpu)?;
    assert_eq!(layer.forward_t(&empty, false)?.dims(), [0, 4, 2]);
    Ok(())
}

#[test]
fn training_between_evaluation_and_its_backward_pass_changes_no_gradient() -> Result<()> {
    let inputs = inputs(&[4, 3, 5]).map(|input| Var::from_tensor(&input));
    let [xs, weight, bias] = inputs;
    let (xs, weight, bias) = (xs?, weight?, bias?);
    let gradient = |trains: bool| -> Result<Tensor> {
        let [mean, variance] = running(3, DType::F64)?;
        let tensors = (weight.as_tensor().clone(), bias.as_tensor().clone());
        let norm = BatchNorm::new(3, mean, variance, tensors.0, tensors.1, EPS)?;
        let ys = norm.forward_t(&xs, false)?;
        if trains {
            norm.forward_train(&(xs.as_tensor() + 3.)?)?;
        }
        let store = ys.sqr()?.sum_all()?.backward()?;
        Ok(store.get(&weight).expect("a gradient").clone())
    };
    same_bits(&gradient(true)?, &gradient(false)?)
}
