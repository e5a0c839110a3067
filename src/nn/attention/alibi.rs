//! ALiBi (Press, Smith and Lewis, 2021): a bias in proportion to the distance between query and key.

use candle_core::{Device, Result, Tensor};

/// Each head's slope for a maximal bias, as candle's kernels compute them.
pub fn slopes(heads: usize, max_bias: f32) -> Vec<f32> {
    let power = heads.max(1).next_power_of_two() as f32;
    let slope = |head: usize| 2f32.powf(-max_bias * (head + 1) as f32 / power);
    (0..heads).map(slope).collect()
}

/// −slope · distance as (heads, queries, keys), in f32, where the first query is at the key of index `offset`.
pub fn bias(
    slopes: &[f32],
    [queries, keys]: [usize; 2],
    offset: i64,
    device: &Device,
) -> Result<Tensor> {
    let mut values = Vec::with_capacity(slopes.len() * queries * keys);
    for slope in slopes {
        for query in 0..queries {
            let at = query as i64 + offset;
            values.extend((0..keys).map(|key| -slope * (at - key as i64).abs() as f32));
        }
    }
    Tensor::from_vec(values, (slopes.len(), queries, keys), device)
}
