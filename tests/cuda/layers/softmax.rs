use candle_core::{Device, Result};
use candle_headroom::nn;

use crate::check::{agrees_on, numbers};
use crate::gpu::gpu;

#[test]
fn softmax() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for shape in [&[3, 5][..], &[2, 3, 33], &[5, 300], &[3, 1030]] {
        let inputs = [numbers(shape, 1)];
        agrees_on(&device, &|x| nn::ops::softmax_last_dim(&x[0]), &inputs)?;
    }
    Ok(())
}
