use candle_core::{Device, Module, Result, Tensor};
use candle_headroom::nn::{Conv1d, Conv2d, ConvTranspose1d};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig};

use crate::check::{agrees_on, numbers};
use crate::gpu::gpu;

/// Padding, stride, dilation and groups.
const CONFIGS: [[usize; 4]; 6] = [
    [0, 1, 1, 1],
    [1, 1, 1, 1],
    [2, 2, 1, 2],
    [0, 3, 2, 1],
    [1, 2, 2, 4],
    // Wider than the strides of the shortest inputs.
    [2, 3, 1, 1],
];

#[test]
fn convolutions_over_one_dimension() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for [padding, stride, dilation, groups] in CONFIGS {
        let config = Conv1dConfig {
            padding,
            stride,
            dilation,
            groups,
            cudnn_fwd_algo: None,
        };
        let layer =
            |x: &[Tensor]| Conv1d::new(x[1].clone(), Some(x[2].clone()), config).forward(&x[0]);
        let least = (dilation * 2 + 1usize).saturating_sub(2 * padding);
        for length in [least.max(1), 11] {
            let inputs = [
                numbers(&[3, 4, length], 1),
                numbers(&[8, 4 / groups, 3], 2),
                numbers(&[8], 3),
            ];
            agrees_on(&device, &layer, &inputs)?;
        }
    }
    Ok(())
}

#[test]
fn transposed_convolutions() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for ([padding, stride, dilation, groups], output_padding) in
        CONFIGS.into_iter().zip([0, 0, 1, 2, 1, 2])
    {
        let config = ConvTranspose1dConfig {
            padding,
            output_padding,
            stride,
            dilation,
            groups,
        };
        let layer = |x: &[Tensor]| {
            ConvTranspose1d::new(x[1].clone(), Some(x[2].clone()), config).forward(&x[0])
        };
        let inputs = [
            numbers(&[3, 8, 5], 1),
            numbers(&[8, 4 / groups, 3], 2),
            numbers(&[4], 3),
        ];
        agrees_on(&device, &layer, &inputs)?;
    }
    Ok(())
}

#[test]
fn convolutions_over_two_dimensions() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for [padding, stride, dilation, groups] in CONFIGS {
        let config = Conv2dConfig {
            padding,
            stride,
            dilation,
            groups,
            cudnn_fwd_algo: None,
        };
        let layer =
            |x: &[Tensor]| Conv2d::new(x[1].clone(), Some(x[2].clone()), config).forward(&x[0]);
        let inputs = [
            numbers(&[2, 4, 5, 8], 1),
            numbers(&[8, 4 / groups, 3, 2], 2),
            numbers(&[8], 3),
        ];
        agrees_on(&device, &layer, &inputs)?;
    }
    Ok(())
}
