//! The bytes that kernels load and store, in launches that the simulated driver executes, beside the least: each input read once, each output
//! written once.

use std::ffi::CString;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::{self, Module, ops};

use super::driver::Counts;

/// Many rows, so that what is read once for all of them counts little, and few enough to be executed in a second.
const ROWS: usize = 4096;
const WIDTH: usize = 1024;
const LEN: usize = ROWS * WIDTH;

/// The kernels of this project's that a pass may launch.
const KERNELS: [&str; 7] = [
    "rows_forward",
    "rows_backward",
    "sum_of_rows",
    "add_parts",
    "cell_sums",
    "cell_scaling",
    "cell_gradient",
];

/// Prints the bytes of a pass, by kernel, and returns them.
fn accessed<T>(pass: &str, dtype: DType, run: impl FnOnce() -> Result<T>) -> Result<u64> {
    let (result, counts) = Counts::of(run);
    result?;
    let names = KERNELS.map(|kernel| format!("{kernel}_{}", dtype.as_str()));
    let mut sum = counts.products().1;
    println!("{pass}, {}", dtype.as_str());
    println!("  {:<24} {sum:>16}", "products");
    for name in names {
        let text = CString::new(name.as_str()).map_err(candle_core::Error::wrap)?;
        let bytes =
            control!(simulated_cuda_accessed(text.as_ptr() => *const std::ffi::c_char) -> u64);
        if bytes > 0 {
            println!("  {name:<24} {bytes:>16}");
        }
        sum += bytes;
    }
    Ok(sum)
}

/// Prints the bytes of norms and of a bias' gradient, and the two figures.
pub fn print() -> Result<()> {
    let device = Device::new_cuda_with_stream(0)?;
    let (mut norm, mut bias) = (0f64, 0f64);
    for dtype in [DType::F32, DType::BF16] {
        let least = |elements: usize| (elements * dtype.size_in_bytes()) as f64;
        let var =
            |tensor: Tensor| Ok::<_, candle_core::Error>(Var::from_tensor(&tensor)?.into_inner());
        let x = var(Tensor::randn(0f32, 1., (ROWS, WIDTH), &device)?.to_dtype(dtype)?)?;
        let alpha = var(Tensor::ones(WIDTH, dtype, &device)?)?;
        let beta = var(alpha.zeros_like()?)?;
        let mut y = None;
        let bytes = accessed("layer norm, forward", dtype, || {
            y = Some(ops::layer_norm(&x, &alpha, &beta, 1e-5)?);
            Ok(())
        })?;
        let of_least = |bytes: u64, elements| {
            let times = bytes as f64 / least(elements);
            println!("  {times:.3} times the least");
            times
        };
        of_least(bytes, 2 * LEN + 2 * WIDTH);
        let backward = |y: Option<Tensor>| y.map(|y| y.sum_all()?.backward()).transpose();
        let bytes = accessed("layer norm, backward", dtype, || backward(y.take()))?;
        norm = norm.max(of_least(bytes, 3 * LEN + 3 * WIDTH));

        for shape in [[ROWS, WIDTH, 1, 1], [16, 64, 64, 64]] {
            let channels = shape[1];
            let ones = Tensor::ones(channels, DType::F32, &device)?;
            let scale = var(ones.to_dtype(dtype)?)?;
            let layer =
                nn::BatchNorm::new(channels, ones.clone(), ones, scale.clone(), scale, 1e-5)?;
            let x = var(x.reshape(shape.as_slice())?.detach())?;
            let name = format!("batch norm of {shape:?}");
            let bytes = accessed(&format!("{name}, forward"), dtype, || {
                y = Some(layer.forward_train(&x)?);
                Ok(())
            })?;
            // The mean, the variance, and the result.
            of_least(bytes, 4 * LEN);
            let bytes = accessed(&format!("{name}, backward"), dtype, || backward(y.take()))?;
            // The sums, and the result.
            of_least(bytes, 5 * LEN);
        }

        let frozen = x.detach();
        let narrow = frozen.narrow(1, 0, 8)?.contiguous()?;
        let weight = frozen.narrow(0, 0, WIDTH)?.narrow(1, 0, 8)?.contiguous()?;
        let y = nn::Linear::new(weight, Some(beta)).forward(&narrow)?;
        let bytes = accessed("the gradient of a bias", dtype, || y.sum_all()?.backward())?;
        bias = bias.max(of_least(bytes, LEN + WIDTH));
    }
    for (name, times) in [("norm_backward", norm), ("bias_gradient", bias)] {
        println!("figure: cuda/{name}_bytes_vs_least = {times:.3} x");
    }
    Ok(())
}
