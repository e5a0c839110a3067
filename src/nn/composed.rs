//! What candle's operations compute on other devices, against the kernels.

use candle_core::{DType, Device, Result, Tensor};

use super::kernel::{Kernel, run};
use super::loss::Targets;
use super::loss::cross_entropy::{CrossEntropy, CrossEntropyBackward};
use super::ops::curves::Curve;
use super::ops::dropout::Mask;
use super::ops::elementwise::{Slopes, Values};
use super::ops::softmax::SoftmaxBackward;
use super::ops::softmax_dim::{LogSoftmaxBackward, Softmax};
use super::ops::swiglu::{Swiglu, SwigluBackward};
use super::seed::Draw;

/// Numbers from -8 to 8.
fn numbers(shape: &[usize], factor: f64) -> Result<Tensor> {
    let len: usize = shape.iter().product();
    let numbers = (0..len).map(|i| 8. * (factor * (i + 1) as f64).sin());
    Tensor::from_iter(numbers, &Device::Cpu)?.reshape(shape)
}

/// Asserts that both ways give the same in f64.
fn same<K: Kernel<IN, OUT>, const IN: usize, const OUT: usize>(
    kernel: &K,
    inputs: [&Tensor; IN],
) -> Result<()> {
    let composed = kernel.composed(inputs)?;
    for (index, (a, b)) in run(kernel, inputs)?.iter().zip(&composed).enumerate() {
        assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()), "{}", K::NAME);
        let off = (a - b)?.abs()?.max_all()?.to_scalar::<f64>()?;
        // candle's constants and tanh of gelu's derivative are good to 6 digits.
        let limit = if K::NAME == "activation_backward" {
            1e-4
        } else {
            1e-10
        };
        assert!(off < limit, "{} {index}: {off:e} off", K::NAME);
    }
    Ok(())
}

#[test]
fn rows() -> Result<()> {
    let (xs, dys) = (numbers(&[5, 7], 1.3)?, numbers(&[5, 7], 0.7)?);
    let width = 7;
    for logarithm in [false, true] {
        same(&Softmax { width, logarithm }, [&xs])?;
    }
    same(&SoftmaxBackward { width }, [&xs, &dys])?;
    same(&LogSoftmaxBackward { width }, [&(xs.abs()? * -1.)?, &dys])
}

#[test]
fn cross_entropy() -> Result<()> {
    let xs = numbers(&[4, 7], 1.3)?;
    for targets in [
        Tensor::new(&[0u32, u32::MAX, 6, 3], &Device::Cpu)?,
        Tensor::new(&[0i64, i64::MAX, 6, 3], &Device::Cpu)?,
    ] {
        let targets = Targets::new(&targets, 4, &Device::Cpu)?;
        let forward = CrossEntropy {
            width: 7,
            targets: targets.clone(),
        };
        same(&forward, [&xs])?;
        let [_, logs] = run(&forward, [&xs])?;
        let backward = CrossEntropyBackward {
            width: 7,
            targets,
            logs,
        };
        same(&backward, [&xs, &Tensor::new(0.3, &Device::Cpu)?])?;
    }
    Ok(())
}

const CURVES: [Curve; 13] = [
    Curve::Gelu,
    Curve::GeluErf,
    Curve::Silu,
    Curve::Relu,
    Curve::Sigmoid,
    Curve::Elu(0.7),
    Curve::Relu2,
    Curve::Relu6,
    Curve::HardSigmoid,
    Curve::HardSwish,
    Curve::Mish,
    Curve::LeakyRelu(0.1),
    Curve::Selu {
        alpha: 1.67,
        gamma: 1.05,
    },
];

#[test]
fn elements() -> Result<()> {
    let (xs, dys) = (numbers(&[3, 40], 1.3)?, numbers(&[3, 40], 0.7)?);
    for curve in CURVES {
        same(&Values(curve), [&xs])?;
        same(&Slopes(curve), [&xs, &dys])?;
    }
    same(&Swiglu { width: 20 }, [&xs])?;
    same(
        &SwigluBackward { width: 20 },
        [&xs, &numbers(&[3, 20], 0.7)?],
    )?;
    let mask = Mask {
        threshold: 1 << 30,
        scale: 4. / 3.,
        draw: Draw { seed: 1, call: 2 },
    };
    same(&mask, [&xs.to_dtype(DType::F64)?])
}

#[test]
fn elements_far_out() -> Result<()> {
    // e^89 is infinite in f32.
    let xs = Tensor::new(&[88f32, 89., 90., 1e4, -90., -1e4], &Device::Cpu)?;
    let dys = xs.ones_like()?;
    for curve in CURVES {
        let ([ys], [slopes]) = (
            Values(curve).composed([&xs])?,
            Slopes(curve).composed([&xs, &dys])?,
        );
        let ([exact], [limits]) = (
            run(&Values(curve), [&xs])?,
            run(&Slopes(curve), [&xs, &dys])?,
        );
        for (found, expected) in [(ys, exact), (slopes, limits)] {
            let (found, expected) = (found.to_vec1::<f32>()?, expected.to_vec1::<f32>()?);
            for (found, expected) in found.into_iter().zip(expected) {
                let off = (found - expected).abs() / expected.abs().max(1.);
                assert!(off < 1e-4, "{curve:?}: {found}, not {expected}");
            }
        }
    }
    Ok(())
}
