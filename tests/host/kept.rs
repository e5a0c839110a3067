//! Bytes that the operations of `candle_headroom::nn` keep for the backward pass.

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::{DeviceMemory, nn};

use crate::support::alone;

/// Upper bound of the bytes that the test harness allocates meanwhile.
const NOISE: u64 = 64 * 1024;

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

fn var(shape: &[usize]) -> Result<Var> {
    Var::randn(0f32, 1., shape, &Device::Cpu)
}

#[test]
fn operations_keep_what_their_documentation_says() -> Result<()> {
    let _alone = alone();
    let xs = var(&[4, 1024, 256])?;
    let bytes = xs.elem_count() * DType::F32.size_in_bytes();
    assert_kept("softmax_last_dim", bytes, || nn::ops::softmax_last_dim(&xs));
    Ok(())
}
