//! Convolutions over two dimensions.

use candle_core::{DType, Module, ModuleT, Result, Tensor, Var};
use candle_headroom_nn::{Conv2d, batch_norm};
use candle_nn::{Conv2dConfig, VarBuilder, VarMap};

use crate::check::{agrees, agrees_with_differences, difference, numbers, same_bits};

const fn config(padding: usize, stride: usize, dilation: usize, groups: usize) -> Conv2dConfig {
    Conv2dConfig {
        padding,
        stride,
        dilation,
        groups,
        cudnn_fwd_algo: None,
    }
}

/// Height and width of input and kernel. The last stride leaves over more of one side than of the other in most.
const SHAPES: [([usize; 2], [usize; 2], Conv2dConfig); 8] = [
    ([5, 5], [3, 3], config(0, 1, 1, 1)),
    ([5, 8], [3, 3], config(1, 2, 1, 1)),
    ([8, 5], [3, 3], config(1, 2, 1, 2)),
    ([4, 6], [1, 1], config(0, 1, 1, 1)),
    ([5, 6], [1, 1], config(0, 3, 1, 4)),
    ([7, 9], [2, 3], config(1, 3, 2, 1)),
    // A padding wider than the strides.
    ([1, 1], [3, 3], config(2, 3, 1, 1)),
    ([1, 4], [3, 2], config(3, 2, 1, 2)),
];

/// Σ over positions in the kernel, by plain operations.
fn plain(x: &[Tensor], config: Conv2dConfig) -> Result<Tensor> {
    let (batch, channels, _, _) = x[0].dims4()?;
    let (out, own, height, width) = x[1].dims4()?;
    let Conv2dConfig {
        padding, groups, ..
    } = config;
    let padded = x[0].pad_with_zeros(2, padding, padding)?;
    let padded = padded.pad_with_zeros(3, padding, padding)?.contiguous()?;
    let count = |dim: usize, kernel: usize| -> Result<usize> {
        Ok((padded.dim(dim)? - config.dilation * (kernel - 1) - 1) / config.stride + 1)
    };
    let (rows, columns) = (count(2, height)?, count(3, width)?);
    let met = |at: usize, count: usize| {
        let met = (0..count).map(|to| (at * config.dilation + to * config.stride) as u32);
        Tensor::from_iter(met, x[0].device())
    };
    let weight = x[1].contiguous()?;
    let weight = weight.reshape((groups, out / groups, own, height, width))?;
    let mut sum = Tensor::zeros((batch, out, rows, columns), x[0].dtype(), x[0].device())?;
    for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
        let met = padded
            .index_select(&met(row, rows)?, 2)?
            .index_select(&met(column, columns)?, 3)?
            .reshape((batch, groups, channels / groups, rows * columns))?;
        let weight = weight.narrow(3, row, 1)?.narrow(4, column, 1)?;
        let weight = weight.squeeze(4)?.squeeze(3)?.broadcast_left(batch)?;
        let product = weight.contiguous()?.matmul(&met)?;
        sum = (sum + product.reshape((batch, out, rows, columns))?)?;
    }
    sum.broadcast_add(&x[2].reshape((1, (), 1, 1))?)
}

fn ours(x: &[Tensor], config: Conv2dConfig) -> Result<Tensor> {
    Conv2d::new(x[1].clone(), Some(x[2].clone()), config).forward(&x[0])
}

#[test]
fn convolution_agrees_with_plain_operations() -> Result<()> {
    for ([height, width], [rows, columns], config) in SHAPES {
        let inputs = [
            numbers(&[2, 4, height, width], 1),
            numbers(&[8, 4 / config.groups, rows, columns], 2),
            numbers(&[8], 3),
        ];
        agrees_with_differences(&|x| ours(x, config), &inputs)?;
        agrees(&|x| ours(x, config), &|x| plain(x, config), &inputs)?;
    }
    Ok(())
}

#[test]
fn the_output_is_candles() -> Result<()> {
    for ([height, width], [rows, columns], config) in SHAPES {
        let x = numbers(&[2, 4, height, width], 1);
        let weight = numbers(&[8, 4 / config.groups, rows, columns], 2);
        for bias in [None, Some(numbers(&[8], 3))] {
            let candles = candle_nn::Conv2d::new(weight.clone(), bias.clone(), config);
            let layer = Conv2d::new(weight.clone(), bias, config);
            same_bits(&layer.forward(&x)?, &candles.forward(&x)?)?;
        }
    }
    Ok(())
}

#[test]
fn a_batch_norm_is_absorbed() -> Result<()> {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F64, &candle_core::Device::Cpu);
    let bn = batch_norm(8, 1e-5, vb)?;
    let x = numbers(&[2, 4, 5, 6], 1);
    let layer = Conv2d::new(numbers(&[8, 4, 3, 3], 2), None, config(1, 1, 1, 1));
    bn.forward_train(&layer.forward(&x)?)?;
    let expected = bn.forward_t(&layer.forward(&x)?, false)?;
    let off = difference(&layer.absorb_bn(&bn)?.forward(&x)?, &expected);
    assert!(off < 1e-12, "{off:e}");
    Ok(())
}

#[test]
fn wrong_shapes_are_errors() -> Result<()> {
    let fails = |x: &[usize], weight: &[usize], config: Conv2dConfig| {
        let layer = Conv2d::new(numbers(weight, 1), Some(numbers(&[8], 2)), config);
        assert!(
            layer.forward(&numbers(x, 3)).is_err(),
            "{x:?}, {weight:?}, {config:?}"
        );
    };
    let simple = config(0, 1, 1, 1);
    for x in [&[4, 5, 5][..], &[2, 5, 5, 5], &[2, 4, 2, 5], &[2, 4, 5, 2]] {
        fails(x, &[8, 4, 3, 3], simple);
    }
    fails(&[2, 4, 5, 5], &[7, 4, 3, 3], simple); // the bias has 8
    fails(&[2, 4, 5, 5], &[8, 4, 0, 3], simple);
    fails(&[2, 4, 5, 5], &[7, 2, 3, 3], config(0, 1, 1, 2));
    for config in [config(0, 0, 1, 1), config(0, 1, 0, 1), config(0, 1, 1, 0)] {
        fails(&[2, 4, 5, 5], &[8, 4, 3, 3], config);
    }
    Ok(())
}

#[test]
fn a_batch_without_samples_has_gradients_of_zero() -> Result<()> {
    let x = Var::zeros((0, 4, 5, 6), DType::F32, &candle_core::Device::Cpu)?;
    let weight = Var::ones((8, 4, 3, 3), DType::F32, &candle_core::Device::Cpu)?;
    let layer = Conv2d::new(weight.as_tensor().clone(), None, config(1, 2, 1, 1));
    let y = layer.forward(&x)?;
    assert_eq!(y.dims(), [0, 8, 3, 3]);
    let gradients = y.sum_all()?.backward()?;
    assert_eq!(gradients.get(&x).expect("a gradient").dims(), x.dims());
    same_bits(
        gradients.get(&weight).expect("a gradient"),
        &weight.zeros_like()?,
    )
}
