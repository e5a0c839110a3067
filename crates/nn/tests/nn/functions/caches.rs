//! Caches of keys and values, which are given all positions in two appends.

use candle_core::{Result, Tensor};
use candle_headroom_nn::kv_cache::{
    Cache, ConcatKvCache, KvCache, RotatingCache, RotatingKvCache, ScatteredCacheBuilder,
};

use super::case::{Argument, Argument::*, Case, Kind};

/// The dimension of the positions.
const DIM: usize = 2;
const CONTEXT: usize = 64;

fn arguments(length: usize) -> Vec<Argument> {
    vec![Sample(vec![2, length, 3]), Sample(vec![2, length, 3])]
}

/// Products of what the second append returned, so that both keys and values count. The first positions are constants.
fn product((k, v): (Tensor, Tensor)) -> Result<Tensor> {
    k * v
}

/// Appends the keys of both calls, and returns what the second one does.
type Append = fn(&[Tensor], [&Tensor; 2]) -> Result<(Tensor, Tensor)>;

fn kv(name: &'static str, append: Append) -> Case {
    Case::new(name, "", Kind::Rows, arguments, move |x| {
        let first = x[0].ones_like()?;
        product(append(x, [&first, &x[0]])?)
    })
}

pub fn cases() -> Vec<Case> {
    vec![
        kv("kv_cache::KvCache", |x, keys| {
            let mut cache = KvCache::new(DIM, CONTEXT);
            cache.append(keys[0], keys[0])?;
            cache.append(keys[1], &x[1])
        }),
        kv("kv_cache::ConcatKvCache", |x, keys| {
            let mut cache = ConcatKvCache::new(DIM);
            cache.append(keys[0], keys[0])?;
            cache.append(keys[1], &x[1])
        }),
        kv("kv_cache::RotatingKvCache", |x, keys| {
            let mut cache = RotatingKvCache::new(DIM, CONTEXT);
            cache.append(keys[0], keys[0])?;
            cache.append(keys[1], &x[1])
        }),
        kv("kv_cache::Cache", |x, keys| {
            let all = |values: &Tensor| -> Result<Tensor> {
                let mut cache = Cache::new(DIM, CONTEXT);
                cache.append(keys[0])?;
                cache.append(values)?;
                Ok(cache.current_data()?.expect("positions"))
            };
            Ok((all(keys[1])?, all(&x[1])?))
        })
        .without_differences("current_data carries no graph"),
        kv("kv_cache::RotatingCache", |x, keys| {
            let all = |values: &Tensor| -> Result<Tensor> {
                let mut cache = RotatingCache::new(DIM, CONTEXT);
                cache.append(keys[0])?;
                cache.append(values)
            };
            Ok((all(keys[1])?, all(&x[1])?))
        }),
        kv("kv_cache::ScatteredKvCache", |x, keys| {
            let (batch, heads, length, width) = x[0].dims4()?;
            let device = x[0].device();
            let mut builder =
                ScatteredCacheBuilder::new(batch, 2 * length + 1, x[0].dtype(), device)?;
            let mut cache = builder.make_cache(heads, width)?;
            let at = builder.indices_and_mask(length, &vec![true; batch])?;
            cache.append(keys[0], keys[0], &at)?;
            let at = builder.indices_and_mask(length, &vec![true; batch])?;
            cache.append(keys[1], &x[1], &at)
        }),
    ]
}
