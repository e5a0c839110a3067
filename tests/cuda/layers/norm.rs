use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::{self, BatchNorm, GroupNorm, LayerNorm, Module, RmsNorm};

use crate::check::{FLOATS, Strides, agrees_on, differentiate, numbers, same_bits};
use crate::gpu::gpu;

const EPS: f32 = 1e-3;

#[test]
fn norms_of_rows() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    // Rows shorter than a warp, more rows than a block takes, rows in groups of four elements, and rows that registers do not hold.
    for shape in [&[3, 5][..], &[2, 10, 33], &[3, 300], &[20, 32], &[17, 4102]] {
        let width = shape[shape.len() - 1];
        let (xs, alpha, beta) = (
            numbers(shape, 1),
            numbers(&[width], 2),
            numbers(&[width], 3),
        );
        let with_bias = [xs.clone(), alpha.clone(), beta];
        let inputs = [xs, alpha];
        let layer = |x: &[Tensor]| nn::ops::layer_norm(&x[0], &x[1], &x[2], EPS);
        agrees_on(&device, &layer, &with_bias)?;
        let [xs, alpha, beta] = with_bias.clone();
        agrees_on(&device, &layer, &[(xs * 1e3)?, alpha.clone(), beta.clone()])?;
        agrees_on(&device, &layer, &[(&with_bias[0] + 1e4)?, alpha, beta])?;
        agrees_on(&device, &|x| nn::ops::rms_norm(&x[0], &x[1], EPS), &inputs)?;
        let rms = |x: &[Tensor]| RmsNorm::new(x[1].clone(), EPS.into()).forward_diff(&x[0]);
        agrees_on(&device, &rms, &inputs)?;
        let unbiased = |x: &[Tensor]| LayerNorm::new_no_bias(x[1].clone(), 1e-3).forward(&x[0]);
        agrees_on(&device, &unbiased, &inputs)?;
        let [xs, alpha, beta] = with_bias.clone();
        let with_residual = [xs, numbers(shape, 4), alpha, beta];
        for uses in [|sum, ys: Tensor| sum + (ys * 2.)?, |_: Tensor, ys| Ok(ys)] {
            let layer = |x: &[Tensor]| {
                let norm = LayerNorm::new(x[2].clone(), x[3].clone(), EPS.into());
                let (sum, ys) = norm.forward_residual(&x[0], &x[1])?;
                uses(sum, ys)
            };
            agrees_on(&device, &layer, &with_residual)?;
            let rms = |x: &[Tensor]| {
                let norm = RmsNorm::new(x[2].clone(), EPS.into());
                let (sum, ys) = norm.forward_residual(&x[0], &x[1])?;
                uses(sum, ys)
            };
            agrees_on(&device, &rms, &with_residual[..3])?;
        }
        // Without the weight's gradient there is one block for each row.
        let alpha = with_bias[1].to_device(&device)?;
        let frozen = |x: &[Tensor]| {
            let alpha = alpha.to_device(x[0].device())?.to_dtype(x[0].dtype())?;
            nn::ops::rms_norm(&x[0], &alpha, EPS)
        };
        agrees_on(&device, &frozen, &inputs[..1])?;
    }
    Ok(())
}

#[test]
fn sums_over_rows_have_the_same_bits_each_time() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let inputs = [numbers(&[40, 50], 1), numbers(&[50], 2)];
    let inputs = inputs.map(|input| input.to_dtype(DType::F32)?.to_device(&device));
    let [xs, alpha] = inputs;
    let inputs = [xs?, alpha?];
    let operation = |x: &[Tensor]| nn::ops::rms_norm(&x[0], &x[1], EPS);
    let once = || differentiate(&operation, &inputs, Strides::Contiguous);
    let ((_, first), (_, second)) = (once()?, once()?);
    for (first, second) in first.iter().zip(&second) {
        same_bits(
            &first.to_device(&Device::Cpu)?,
            &second.to_device(&Device::Cpu)?,
        )?;
    }
    Ok(())
}

#[test]
fn rows_that_begin_at_any_element_have_the_same_bits() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for dtype in FLOATS {
        let all = numbers(&[1 + 3 * 64], 1)
            .to_dtype(dtype)?
            .to_device(&device)?;
        let alpha = all.narrow(0, 1, 64)?;
        let xs = all.narrow(0, 1, 3 * 64)?.reshape((3, 64))?;
        let run = |xs: &Tensor, alpha: &Tensor| {
            let layers = [
                nn::ops::rms_norm(xs, alpha, EPS)?,
                nn::ops::softmax_last_dim(xs)?,
                nn::ops::silu(xs)?,
                nn::ops::swiglu(xs)?,
            ];
            layers
                .iter()
                .map(|ys| ys.to_device(&Device::Cpu))
                .collect::<Result<Vec<_>>>()
        };
        let copied = run(&xs.copy()?, &alpha.copy()?)?;
        for (found, expected) in run(&xs, &alpha)?.iter().zip(&copied) {
            same_bits(found, expected)?;
        }
    }
    Ok(())
}

#[test]
fn norms_of_channels() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let group = |x: &[Tensor]| {
        let channels = x[1].elem_count();
        GroupNorm::new(x[1].clone(), x[2].clone(), channels, 2, 1e-3)?.forward(&x[0])
    };
    let batch = |x: &[Tensor]| {
        let dtype = match x[0].dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let running = Tensor::ones(x[1].elem_count(), dtype, x[0].device())?;
        let (mean, variance) = (running.clone(), running);
        let (weight, bias) = (x[1].clone(), x[2].clone());
        BatchNorm::new(x[1].elem_count(), mean, variance, weight, bias, 1e-3)?.forward_train(&x[0])
    };
    // Single elements and groups of four of a channel, then channels in one part and in several.
    for shape in [
        &[2, 4, 5][..],
        &[3, 6, 11, 4],
        &[1, 2, 700],
        &[3, 2, 9000],
        &[1, 2, 5001],
        &[40, 2, 1],
        &[150, 132, 1],
    ] {
        let inputs = [
            numbers(shape, 1),
            numbers(&[shape[1]], 2),
            numbers(&[shape[1]], 3),
        ];
        // A group of two elements has a gradient of almost nothing but rounding.
        if shape[1] / 2 * shape[2] > 2 {
            agrees_on(&device, &group, &inputs)?;
        }
        agrees_on(&device, &batch, &inputs)?;
    }
    Ok(())
}

#[test]
fn running_statistics_on_the_device_are_those_on_the_cpu() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let after = |device: &Device| -> Result<[Tensor; 2]> {
        let ones = Tensor::ones(3, DType::F32, device)?;
        let norm = BatchNorm::new_no_bias(3, ones.clone(), ones, 1e-3)?;
        let xs = numbers(&[4, 3, 50], 1).to_dtype(DType::F32)?;
        norm.forward_train(&xs.to_device(device)?)?;
        let statistic = |running: &Tensor| {
            let there = running.to_device(&Device::Cpu)?;
            there.to_dtype(DType::F64)
        };
        Ok([
            statistic(norm.running_mean())?,
            statistic(norm.running_var())?,
        ])
    };
    for (found, expected) in after(&device)?.iter().zip(&after(&Device::Cpu)?) {
        // Sums of 200 values in another order.
        assert!(crate::check::difference(found, expected) < 1e-6);
    }
    Ok(())
}
