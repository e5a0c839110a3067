//! `RotatingKvCache`.

use candle_core::{DType, Result};
use candle_headroom_nn::kv_cache as ours;
use candle_nn::kv_cache as candles;

use super::*;

/// A reset once in twenty; appends shorter and longer than the ring, often of one position.
fn run(seed: u64, size: usize, graph: Graph, dtype: DType) -> Result<()> {
    let mut random = Random(seed);
    let mut a = ours::RotatingKvCache::new(DIM, size);
    let mut b = candles::RotatingKvCache::new(DIM, size);
    let mut returned = Returned::default();
    for _ in 0..80 {
        for count in [0, 1, 2, size.saturating_sub(1), size, size + 3] {
            assert_eq!(a.positions(count), b.positions(count), "{count} of {size}");
            let (a, b) = (a.attn_mask(count, &cpu())?, b.attn_mask(count, &cpu())?);
            assert_eq!(mask(a)?, mask(b)?, "{count} of {size}");
        }
        if random.below(20) == 0 {
            a.reset();
            b.reset();
        } else {
            let count = match random.below(3) {
                0 => 1,
                1 => random.below(size + 1),
                _ => random.below(2 * size + 2),
            };
            let (k, v) = (
                random.positions(count, dtype)?,
                random.positions(count, dtype)?,
            );
            let tracked = graph.next(&mut random);
            let (all_k, all_v) = a.append(&in_graph(&k, tracked.0)?, &in_graph(&v, tracked.1)?)?;
            let (candles_k, candles_v) = b.append(&k, &v)?;
            let any = tracked.0 || tracked.1;
            // The ring itself is returned without a graph, and changes as candle's does.
            for (ours, candles, tracked) in
                [(all_k, candles_k, tracked.0), (all_v, candles_v, tracked.1)]
            {
                assert!(count == 0 || ours.track_op() == tracked);
                match any {
                    true => returned.push(ours, &candles)?,
                    false => same_bits(&ours, &candles)?,
                }
            }
        }
        same(&a.k()?, &b.k()?)?;
        same(&a.v()?, &b.v()?)?;
        assert_eq!(
            (a.offset(), a.current_seq_len()),
            (b.offset(), b.current_seq_len())
        );
        for (a, b) in [(a.k_cache(), b.k_cache()), (a.v_cache(), b.v_cache())] {
            assert_eq!((a.dim(), a.max_seq_len()), (b.dim(), b.max_seq_len()));
            assert_eq!(
                (a.offset(), a.current_seq_len()),
                (b.offset(), b.current_seq_len())
            );
            if graph == Graph::Never {
                same(a.all_data(), b.all_data())?;
            }
        }
    }
    returned.are_unchanged()
}

#[test]
fn rotating_kv_cache_returns_what_candles_does() -> Result<()> {
    for graph in GRAPHS {
        for size in [1, 2, 3, 4, 5, 7, 8, 16, 33] {
            for seed in 1..4 {
                run(seed, size, graph, DType::F32)?;
            }
        }
        for dtype in [DType::F64, DType::F16, DType::BF16] {
            run(20, 7, graph, dtype)?;
        }
    }
    Ok(())
}

/// `RotatingCache` alone, keys longer than values.
#[test]
fn rotating_cache_returns_what_candles_does() -> Result<()> {
    let mut random = Random(5);
    let mut a = ours::RotatingKvCache::new(DIM, 6);
    let mut b = candles::RotatingKvCache::new(DIM, 6);
    for step in 0..60 {
        let count = random.below(8);
        let new = random.positions(count, DType::F32)?;
        let tracked = in_graph(&new, step % 3 == 0)?;
        same_bits(
            &a.k_cache_mut().append(&tracked)?,
            &b.k_cache_mut().append(&new)?,
        )?;
        if step % 2 == 0 {
            same_bits(
                &a.v_cache_mut().append(&tracked)?,
                &b.v_cache_mut().append(&new)?,
            )?;
        }
        same(&a.k_cache().current_data()?, &b.k_cache().current_data()?)?;
        same(&a.v_cache().current_data()?, &b.v_cache().current_data()?)?;
        assert_eq!(a.positions(3), b.positions(3));
    }
    Ok(())
}
