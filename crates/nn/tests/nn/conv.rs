//! Convolutions over one dimension.

use candle_core::{Module, Result, Tensor};
use candle_headroom_nn::{Conv1d, ConvTranspose1d, PReLU};
use candle_nn::{Conv1dConfig, ConvTranspose1dConfig};

use crate::check::{agrees, agrees_with_differences, difference, numbers};

const CONFIGS: [Conv1dConfig; 5] = [
    config(0, 1, 1, 1),
    config(1, 1, 1, 1),
    config(2, 2, 1, 2),
    config(0, 3, 2, 1),
    config(1, 2, 2, 4),
];

const fn config(padding: usize, stride: usize, dilation: usize, groups: usize) -> Conv1dConfig {
    Conv1dConfig {
        padding,
        stride,
        dilation,
        groups,
        cudnn_fwd_algo: None,
    }
}

const fn transposed(config: Conv1dConfig, output_padding: usize) -> ConvTranspose1dConfig {
    let Conv1dConfig {
        padding,
        stride,
        dilation,
        groups,
        ..
    } = config;
    ConvTranspose1dConfig {
        padding,
        output_padding,
        stride,
        dilation,
        groups,
    }
}

/// Σ over positions in the kernel, by plain operations of candle that are right on the CPU.
fn plain(x: &[Tensor], config: Conv1dConfig) -> Result<Tensor> {
    let (batch, channels, _) = x[0].dims3()?;
    let (out, own, kernel) = x[1].dims3()?;
    let padded = x[0]
        .pad_with_zeros(2, config.padding, config.padding)?
        .contiguous()?;
    let length = (padded.dim(2)? - config.dilation * (kernel - 1) - 1) / config.stride + 1;
    let weight = x[1]
        .contiguous()?
        .reshape((config.groups, out / config.groups, own, kernel))?;
    let mut sum = Tensor::zeros((batch, out, length), x[0].dtype(), x[0].device())?;
    for at in 0..kernel {
        let met = (0..length).map(|to| (at * config.dilation + to * config.stride) as u32);
        let met = padded.index_select(&Tensor::from_iter(met, x[0].device())?, 2)?;
        let met = met.reshape((batch, config.groups, channels / config.groups, length))?;
        let weight = weight
            .narrow(3, at, 1)?
            .squeeze(3)?
            .broadcast_left(batch)?
            .contiguous()?;
        sum = (sum + weight.matmul(&met)?.reshape((batch, out, length))?)?;
    }
    sum.broadcast_add(&x[2].reshape((1, (), 1))?)
}

fn ours(x: &[Tensor], config: Conv1dConfig) -> Result<Tensor> {
    Conv1d::new(x[1].clone(), Some(x[2].clone()), config).forward(&x[0])
}

fn transpose(x: &[Tensor], config: ConvTranspose1dConfig) -> Result<Tensor> {
    ConvTranspose1d::new(x[1].clone(), x.get(2).cloned(), config).forward(&x[0])
}

/// Adds the product of each position in the kernel to where it belongs.
fn plain_transpose(x: &[Tensor], config: ConvTranspose1dConfig) -> Result<Tensor> {
    let (batch, channels, length) = x[0].dims3()?;
    let (_, own, kernel) = x[1].dims3()?;
    let (groups, part) = (config.groups, channels / config.groups);
    let short = x[0].contiguous()?.reshape((batch, groups, part, length))?;
    let weight = x[1].contiguous()?.reshape((groups, part, own, kernel))?;
    let out = groups * own;
    let met = (length - 1) * config.stride + config.dilation * (kernel - 1) + 1;
    let wide = (batch, out, met + config.output_padding);
    let mut sum = Tensor::zeros(wide, x[0].dtype(), x[0].device())?;
    for at in 0..kernel {
        let places = (0..length).map(|from| (at * config.dilation + from * config.stride) as u32);
        let places = Tensor::from_iter(places, x[0].device())?;
        let weight = weight.narrow(3, at, 1)?.squeeze(3)?.transpose(1, 2)?;
        let weight = weight.broadcast_left(batch)?.contiguous()?;
        let product = weight.matmul(&short)?.reshape((batch, out, length))?;
        sum = sum.index_add(&places, &product, 2)?;
    }
    let length = met + config.output_padding - 2 * config.padding;
    sum.narrow(2, config.padding, length)?
        .broadcast_add(&x[2].reshape((1, (), 1))?)
}

fn inputs(config: Conv1dConfig) -> [Tensor; 3] {
    [
        numbers(&[3, 4, 11], 1),
        numbers(&[8, 4 / config.groups, 3], 2),
        numbers(&[8], 3),
    ]
}

#[test]
fn convolution_agrees_with_plain_operations() -> Result<()> {
    for config in CONFIGS {
        let inputs = inputs(config);
        agrees_with_differences(&|x| ours(x, config), &inputs)?;
        agrees(&|x| ours(x, config), &|x| plain(x, config), &inputs)?;
    }
    Ok(())
}

/// The strides of the output are less than the padding, so that candle cannot subtract it from them.
#[test]
fn a_padding_wider_than_the_strides() -> Result<()> {
    for (length, config) in [
        (1, config(2, 3, 1, 1)),
        (1, config(1, 1, 1, 1)),
        (2, config(2, 3, 1, 2)),
        (3, config(3, 2, 2, 1)),
        (1, config(6, 4, 1, 1)),
    ] {
        let inputs = [
            numbers(&[2, 4, length], 1),
            numbers(&[6, 4 / config.groups, 3], 2),
            numbers(&[6], 3),
        ];
        agrees_with_differences(&|x| ours(x, config), &inputs)?;
        agrees(&|x| ours(x, config), &|x| plain(x, config), &inputs)?;
    }
    let config = transposed(config(1, 2, 1, 1), 1);
    let inputs = [
        numbers(&[2, 4, 1], 1),
        numbers(&[4, 6, 3], 2),
        numbers(&[6], 3),
    ];
    let layer = |x: &[Tensor]| transpose(x, config);
    assert_eq!(layer(&inputs)?.dims(), [2, 6, 2]);
    agrees_with_differences(&layer, &inputs)?;
    agrees(&layer, &|x| plain_transpose(x, config), &inputs)
}

#[test]
fn transposed_convolution_is_the_transpose() -> Result<()> {
    for (config, output_padding) in CONFIGS.into_iter().zip([0, 0, 1, 2, 1]) {
        let config = transposed(config, output_padding);
        let layer = |x: &[Tensor]| transpose(x, config);
        let [x, weight, bias] = [
            numbers(&[3, 8, 5], 1),
            numbers(&[8, 4 / config.groups, 3], 2),
            numbers(&[4], 3),
        ];
        let inputs = [x.clone(), weight.clone(), bias];
        agrees_with_differences(&layer, &inputs)?;
        agrees(&layer, &|x| plain_transpose(x, config), &inputs)?;
        // <y, conv(z)> = <convᵀ(y), z>
        let wide = layer(&[x.clone(), weight.clone()])?;
        let z = numbers(wide.dims(), 4);
        let narrow = z.conv1d(
            &weight,
            config.padding,
            config.stride,
            config.dilation,
            config.groups,
        )?;
        let narrow = narrow.narrow(2, 0, x.dim(2)?)?;
        let (there, back) = ((narrow * &x)?.sum_all()?, (wide * &z)?.sum_all()?);
        assert!(difference(&there, &back) < 1e-12, "{config:?}");
    }
    Ok(())
}

#[test]
fn strided_inputs_give_the_same() -> Result<()> {
    for config in CONFIGS {
        let [x, weight, bias] = inputs(config);
        let permuted = |t: &Tensor| t.transpose(0, 2)?.contiguous()?.transpose(0, 2);
        let strided = [permuted(&x)?, permuted(&weight)?, bias.clone()];
        let off = difference(&ours(&strided, config)?, &ours(&[x, weight, bias], config)?);
        assert!(off < 1e-14, "{off:e}");
    }
    Ok(())
}

#[test]
fn wrong_shapes_are_errors() {
    let layer = Conv1d::new(numbers(&[8, 4, 3], 1), None, Conv1dConfig::default());
    for shape in [&[4, 11][..], &[2, 5, 11], &[2, 4, 2]] {
        assert!(layer.forward(&numbers(shape, 2)).is_err(), "{shape:?}");
    }
    let config = Conv1dConfig {
        stride: 0,
        ..Default::default()
    };
    let layer = Conv1d::new(numbers(&[8, 4, 3], 1), None, config);
    assert!(layer.forward(&numbers(&[2, 4, 11], 2)).is_err());
    // 7 channels are not 2 groups.
    let config = Conv1dConfig {
        groups: 2,
        ..Default::default()
    };
    let layer = Conv1d::new(numbers(&[7, 2, 3], 1), None, config);
    assert!(layer.forward(&numbers(&[2, 4, 11], 2)).is_err());
    let config = ConvTranspose1dConfig {
        padding: 9,
        ..Default::default()
    };
    let layer = ConvTranspose1d::new(numbers(&[8, 4, 3], 1), None, config);
    assert!(layer.forward(&numbers(&[2, 8, 5], 2)).is_err());
}

/// Candle's layers become these, with the same parts.
#[test]
fn candles_layers_become_these() -> Result<()> {
    let (weight, bias) = (numbers(&[4, 2, 3], 1), numbers(&[4], 2));
    let theirs = candle_nn::Conv1d::new(weight, Some(bias), config(2, 2, 1, 2));
    let x = numbers(&[2, 4, 9], 3);
    let ours = Conv1d::from(theirs.clone());
    assert_eq!(ours.config(), theirs.config());
    assert!(difference(&ours.forward(&x)?, &theirs.forward(&x)?) < 1e-12);

    let theirs = candle_nn::PReLU::new(numbers(&[4], 2), false);
    let ours = PReLU::from(theirs.clone());
    assert!(difference(&ours.forward(&x)?, &theirs.forward(&x)?) < 1e-12);
    Ok(())
}
