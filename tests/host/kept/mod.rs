//! Bytes that the operations of `candle_headroom::nn` keep for the backward pass.

mod attention;
mod chains;
mod conv;
mod images;
mod kv_cache;
mod linear_cross_entropy;
mod losses;
mod norm;
mod rotary;
mod softmax;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::DeviceMemory;

/// Upper bound of the bytes that the test harness allocates meanwhile.
const NOISE: u64 = 64 * 1024;

/// So many short rows that a number kept for each is far more than the noise: 1 MiB of f32.
const NARROW: &[usize] = &[4, 65536, 8];

/// Asserts that the output of an operation and its graph hold exactly `expected` bytes besides the inputs.
fn assert_kept(name: &str, expected: usize, operation: impl FnOnce() -> Result<Tensor>) {
    let memory = DeviceMemory::host()
        .open()
        .expect("an allocator that counts");
    let before = memory.in_use().expect("bytes in use");
    let output = operation().expect("an output");
    let kept = memory
        .in_use()
        .expect("bytes in use")
        .saturating_sub(before);
    assert!(
        kept.abs_diff(expected as u64) <= NOISE,
        "{name} keeps {kept} bytes, not {expected}"
    );
    drop(output);
}

/// A Var of random numbers, and its bytes.
fn var(shape: &[usize]) -> Result<(Var, usize)> {
    let var = Var::randn(0f32, 1., shape, &Device::Cpu)?;
    let bytes = var.elem_count() * DType::F32.size_in_bytes();
    Ok((var, bytes))
}
