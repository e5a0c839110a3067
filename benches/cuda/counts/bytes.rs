//! The bytes that kernels load and store, in launches that the simulated driver executes, beside the least: each input read once, each output
//! written once.

use std::ffi::{CString, c_char};

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::{self, Module, loss, ops};

use super::driver::Counts;

/// Many rows, so that what is read once for all of them counts little, and few enough to be executed in a second.
const ROWS: usize = 4096;
const WIDTH: usize = 1024;
const LEN: f64 = (ROWS * WIDTH) as f64;

/// What the kernels of candle's begin with that a sum and its backward pass launch besides.
const CANDLES: [&str; 5] = ["fast_sum", "badd", "affine", "const_set", "ucopy"];

/// Prints the bytes of what is run beside its least, by kernel, and returns how many times the least they are.
fn times<T>(name: &str, least: f64, run: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let (result, counts) = Counts::of(run);
    println!("{name}");
    let mut sum = 0;
    for (kernel, ..) in counts.kernels() {
        let text = CString::new(kernel).map_err(candle_core::Error::wrap)?;
        let bytes = control!(simulated_cuda_accessed(text.as_ptr() => *const c_char) -> u64);
        if !CANDLES
            .iter()
            .any(|of_candle| kernel.starts_with(of_candle))
        {
            println!("  {kernel:<32} {bytes:>12}");
            sum += bytes;
        }
    }
    let times = sum as f64 / least;
    println!("  {times:.3} times the least");
    Ok((result?, times))
}

/// A layer as a function of x (ROWS, WIDTH), of a scale and of a shift (WIDTH), and the least elements that it reads and writes forward and backward.
type Case = (&'static str, [f64; 2], fn(&[Tensor; 3]) -> Result<Tensor>);

fn batch_norm([x, scale, shift]: &[Tensor; 3], shape: [usize; 4]) -> Result<Tensor> {
    let [_, channels, ..] = shape;
    let [scale, shift] = [scale, shift].map(|of_width| of_width.narrow(0, 0, channels));
    let ones = Tensor::ones(channels, DType::F32, x.device())?;
    let norm = nn::BatchNorm::new(channels, ones.clone(), ones, scale?, shift?, 1e-5)?;
    norm.forward_train(&x.reshape(shape.as_slice())?)
}

/// A norm over cells reads x for the mean, for the variance and for its result, and both x and dy twice to go backward.
const CASES: [Case; 9] = [
    ("layer norm", [2., 3.], |[x, scale, shift]| {
        ops::layer_norm(x, scale, shift, 1e-5)
    }),
    ("batch norm of columns", [4., 5.], |x| {
        batch_norm(x, [ROWS, WIDTH, 1, 1])
    }),
    ("batch norm of images", [4., 5.], |x| {
        batch_norm(x, [16, 64, 64, 64])
    }),
    ("bias", [2., 1.], |[x, _, shift]| {
        let (narrow, weight) = (x.detach().narrow(1, 0, 8)?, x.detach().narrow(0, 0, WIDTH)?);
        let weight = weight.narrow(1, 0, 8)?.contiguous()?;
        nn::Linear::new(weight, Some(shift.clone())).forward(&narrow.contiguous()?)
    }),
    ("softmax", [2., 3.], |[x, ..]| ops::softmax_last_dim(x)),
    ("cross-entropy", [1., 2.], |[x, ..]| {
        loss::cross_entropy(x, &Tensor::zeros(ROWS, DType::U32, x.device())?)
    }),
    ("SiLU", [2., 3.], |[x, ..]| ops::silu(x)),
    ("SwiGLU", [1.5, 2.5], |[x, ..]| ops::swiglu(x)),
    ("dropout", [2., 2.], |[x, ..]| ops::dropout(x, 0.1)),
];

/// Prints the bytes of layers, and two figures: the larger of two types.
pub fn print() -> Result<()> {
    let device = Device::new_cuda_with_stream(0)?;
    let (mut norm, mut bias) = (0f64, 0f64);
    for dtype in [DType::F32, DType::BF16] {
        let var = |x: Tensor| -> Result<Tensor> {
            Ok(Var::from_tensor(&x.to_dtype(dtype)?)?.into_inner())
        };
        let inputs = [
            Tensor::randn(0f32, 1., (ROWS, WIDTH), &device)?,
            Tensor::ones(WIDTH, DType::F32, &device)?,
            Tensor::zeros(WIDTH, DType::F32, &device)?,
        ];
        let [x, scale, shift] = inputs.map(var);
        let inputs = [x?, scale?, shift?];
        for (name, least, layer) in CASES {
            let [forward, backward] =
                least.map(|of_each| of_each * LEN * dtype.size_in_bytes() as f64);
            let pass = |pass: &str| format!("{name}, {pass}, {}", dtype.as_str());
            let (y, _) = times(&pass("forward"), forward, || layer(&inputs))?;
            let sum = y.sum_all()?;
            let (_, times) = times(&pass("backward"), backward, || sum.backward())?;
            match name {
                "layer norm" => norm = norm.max(times),
                "bias" => bias = bias.max(times),
                _ => {}
            }
        }
    }
    for (name, times) in [("norm_backward", norm), ("bias_gradient", bias)] {
        println!("figure: cuda/{name}_bytes_vs_least = {times:.3} x");
    }
    Ok(())
}
