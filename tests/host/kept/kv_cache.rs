use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::DeviceMemory;
use candle_headroom::nn::kv_cache::{
    ConcatKvCache, KvCache, RotatingKvCache, ScatteredCacheBuilder,
};

use super::{NOISE, assert_kept, var};
use crate::support::alone;

const SHAPE: [usize; 4] = [2, 4, 256, 64];

type Append = Box<dyn FnMut(&Tensor, &Tensor) -> Result<(Tensor, Tensor)>>;

/// The caches, and the positions that they return after two appends of 256.
fn caches() -> [(&'static str, usize, Append); 4] {
    let mut kv = KvCache::new(2, 100_000);
    let mut concat = ConcatKvCache::new(2);
    let mut ring = RotatingKvCache::new(2, 300);
    let mut short = RotatingKvCache::new(2, 100);
    [
        ("KvCache", 512, Box::new(move |k, v| kv.append(k, v))),
        (
            "ConcatKvCache",
            512,
            Box::new(move |k, v| concat.append(k, v)),
        ),
        (
            "RotatingKvCache",
            300,
            Box::new(move |k, v| ring.append(k, v)),
        ),
        // The new ones themselves.
        (
            "a short RotatingKvCache",
            0,
            Box::new(move |k, v| short.append(k, v)),
        ),
    ]
}

/// Lets each thread that copies allocate what it keeps, which is no cache's.
fn warm_up(k: &Tensor) -> Result<()> {
    for (_, _, mut append) in caches() {
        append(k, k)?;
        append(k, k)?;
    }
    Ok(())
}

#[test]
fn caches_keep_one_copy_of_all_positions_and_none_if_they_were_empty() -> Result<()> {
    let _alone = alone();
    let (k, bytes) = var(&SHAPE)?;
    let k = k.affine(2., 0.)?;
    warm_up(&k)?;
    for (name, positions, mut append) in caches() {
        assert_kept(name, 0, || Ok(append(&k, &k)?.0));
        // Those of keys and values.
        assert_kept(name, 2 * bytes * positions / 256, || Ok(append(&k, &k)?.0));
    }
    Ok(())
}

/// What led to the keys is freed with the output; the cache keeps the keys' own memory.
#[test]
fn caches_keep_no_graph() -> Result<()> {
    let _alone = alone();
    let memory = DeviceMemory::host()
        .open()
        .expect("an allocator that counts");
    let (x, bytes) = var(&SHAPE)?;
    warm_up(&x.sin()?.sqr()?.exp()?)?;
    for (name, positions, mut append) in caches() {
        let before = memory.in_use().expect("bytes in use");
        // Keys and values are one tensor; after a second append each has a copy.
        for expected in [bytes, bytes.max(2 * bytes * positions / 256)] {
            let k = x.sin()?.sqr()?.exp()?;
            let output = append(&k, &k)?;
            drop((output, k));
            let after = memory.in_use().expect("bytes in use");
            let kept = after.saturating_sub(before);
            assert!(
                kept.abs_diff(expected as u64) <= NOISE,
                "{name} keeps {kept} bytes, not {expected}"
            );
        }
    }
    Ok(())
}

/// Copies of both rings, and 4 bytes for each of their positions, which heads and head dimension share.
#[test]
fn scattered_caches_keep_copies_of_the_rings_and_where_they_come_from() -> Result<()> {
    let _alone = alone();
    let (batch, heads, context, width) = (4, 2, 1 << 16, 4);
    let mut builder = ScatteredCacheBuilder::new(batch, context, DType::F32, &Device::Cpu)?;
    let mut cache = builder.make_cache(heads, width)?;
    let (k, _) = var(&[batch, heads, 16, width])?;
    let k = k.affine(2., 0.)?;
    let places = builder.indices_and_mask(16, &vec![true; batch])?;
    let rings = 2 * batch * heads * context * width * DType::F32.size_in_bytes();
    let mut values = None;
    assert_kept("ScatteredKvCache", rings + 4 * batch * context, || {
        let (all_k, all_v) = cache.append(&k, &k, &places)?;
        values = Some(all_v);
        Ok(all_k)
    });
    Ok(())
}
