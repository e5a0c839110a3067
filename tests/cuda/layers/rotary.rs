use candle_core::{Device, Result};
use candle_headroom::nn::rotary_emb::{rope, rope_i, rope_thd};

use crate::check::{agrees_on, numbers};
use crate::gpu::gpu;

#[test]
fn rotary_embeddings() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for (shape, cos, sin) in [
        ([2, 3, 5, 8], &[5, 4][..], &[9, 4][..]),
        ([2, 3, 5, 8], &[2, 5, 4], &[2, 7, 4]),
        ([2, 3, 5, 8], &[2, 5, 4], &[6, 4]),
        ([1, 2, 1, 70], &[3, 35], &[1, 35]),
    ] {
        let inputs = [numbers(&shape, 1), numbers(cos, 2), numbers(sin, 3)];
        agrees_on(&device, &|x| rope(&x[0], &x[1], &x[2]), &inputs)?;
        agrees_on(&device, &|x| rope_i(&x[0], &x[1], &x[2]), &inputs)?;
        agrees_on(
            &device,
            &|x| rope_thd(&x[0].transpose(1, 2)?, &x[1], &x[2]),
            &inputs,
        )?;
    }
    Ok(())
}
