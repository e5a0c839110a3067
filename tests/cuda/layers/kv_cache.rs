use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::kv_cache::{KvCache, RotatingKvCache, ScatteredCacheBuilder};

use crate::check::{agrees_on, numbers};
use crate::gpu::gpu;

/// Positions without a graph and with one, three times, and a mixture of keys and values.
fn alternating(
    inputs: &[Tensor],
    mut append: impl FnMut(&Tensor, &Tensor) -> Result<(Tensor, Tensor)>,
) -> Result<Tensor> {
    let [k, v] = inputs else {
        panic!("keys and values");
    };
    let constant = (k.detach(), v.detach());
    append(&constant.0, &constant.1)?;
    append(k, v)?;
    append(&constant.1, &constant.0)?;
    let (k, v) = append(k, v)?;
    k * v.sqr()?
}

#[test]
fn kv_caches() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let inputs = [numbers(&[2, 3, 5, 6], 1), numbers(&[2, 3, 5, 6], 2)];
    for size in [3, 8, 64] {
        let growing = |inputs: &[Tensor]| {
            let mut cache = KvCache::new(2, size);
            alternating(inputs, |k, v| cache.append(k, v))
        };
        agrees_on(&device, &growing, &inputs)?;
        let rotating = |inputs: &[Tensor]| {
            let mut cache = RotatingKvCache::new(2, size);
            alternating(inputs, |k, v| cache.append(k, v))
        };
        agrees_on(&device, &rotating, &inputs)?;
    }
    let scattered = |inputs: &[Tensor]| {
        let (dtype, device) = (inputs[0].dtype(), inputs[0].device());
        let mut builder = ScatteredCacheBuilder::new(2, 8, dtype, device)?;
        let mut cache = builder.make_cache(3, 6)?;
        builder.indices_and_mask(1, &[true, false])?;
        alternating(inputs, |k, v| {
            let places = builder.indices_and_mask(5, &[true, false])?;
            cache.append(k, v, &places)
        })
    };
    agrees_on(&device, &scattered, &inputs)?;
    let wide = Tensor::zeros((1, 2, 300, 4), DType::F32, &device)?;
    assert!(RotatingKvCache::new(2, 0).append(&wide, &wide).is_ok());
    Ok(())
}
