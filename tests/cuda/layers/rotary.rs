use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::nn::rotary_emb::{
    rope, rope_both, rope_i, rope_i_both, rope_thd, rope_thd_both,
};

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

/// Queries and keys in one launch: against the CPU, where each is rotated by itself.
#[test]
fn queries_and_keys_at_once() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    for (heads, time, d, tables) in [
        ([3, 1], 5, 8, &[5, 4][..]),
        // Longer tables, and one for each sample.
        ([4, 4], 3, 6, &[7, 3]),
        ([2, 6], 5, 8, &[2, 5, 4]),
        ([2, 1], 5, 8, &[2, 7, 4]),
        ([40, 8], 1, 70, &[1, 35]),
    ] {
        let [cos, sin] = [numbers(tables, 3), numbers(tables, 4)];
        let inputs = heads.map(|heads| numbers(&[2, heads, time, d], heads as u64));
        let tables = |x: &[Tensor]| -> Result<[Tensor; 2]> {
            let (device, dtype) = (x[0].device(), x[0].dtype());
            let [cos, sin] = [&cos, &sin].map(|table| table.to_device(device)?.to_dtype(dtype));
            Ok([cos?, sin?])
        };
        let joined = |(q, k): (Tensor, Tensor)| {
            Tensor::cat(&[q.flatten_all()?, (k.flatten_all()? * 2.)?], 0)
        };
        let halves = |x: &[Tensor]| {
            let [cos, sin] = tables(x)?;
            joined(rope_both(&x[0], &x[1], &cos, &sin)?)
        };
        let neighbours = |x: &[Tensor]| {
            let [cos, sin] = tables(x)?;
            joined(rope_i_both(&x[0], &x[1], &cos, &sin)?)
        };
        let time_first = |x: &[Tensor]| {
            let ([cos, sin], [q, k]) = (tables(x)?, [x[0].transpose(1, 2)?, x[1].transpose(1, 2)?]);
            joined(rope_thd_both(&q, &k, &cos, &sin)?)
        };
        agrees_on(&device, &halves, &inputs)?;
        agrees_on(&device, &neighbours, &inputs)?;
        agrees_on(&device, &time_first, &inputs)?;
    }
    Ok(())
}

/// The gradient of one arrives without that of the other, and one that leads to no Var receives none.
#[test]
fn one_of_queries_and_keys() -> Result<()> {
    let gpu = gpu();
    let device = Device::new_cuda_with_stream(gpu.ordinal)?;
    let [q, k] = [(3, 1), (1, 2)].map(|(heads, seed)| -> Result<Var> {
        let values = numbers(&[2, heads, 5, 8], seed).to_dtype(DType::F32)?;
        Var::from_tensor(&values.to_device(&device)?)
    });
    let (q, k) = (q?, k?);
    let table = |seed| {
        numbers(&[5, 4], seed)
            .to_dtype(DType::F32)?
            .to_device(&device)
    };
    let (cos, sin) = (table(3)?, table(4)?);
    let expected = rope(&k, &cos, &sin)?.sum_all()?.backward()?;
    let expected = expected
        .get(&k)
        .expect("a gradient")
        .flatten_all()?
        .to_vec1::<f32>()?;
    for queries in [q.as_tensor().clone(), q.as_detached_tensor()] {
        let (_, keys) = rope_both(&queries, &k, &cos, &sin)?;
        let store = keys.sum_all()?.backward()?;
        let found = store
            .get(&k)
            .expect("a gradient")
            .flatten_all()?
            .to_vec1::<f32>()?;
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
    Ok(())
}
