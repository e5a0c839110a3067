//! `KvCache` and `ConcatKvCache`.

use candle_core::{DType, Result};
use candle_headroom_nn::kv_cache as ours;
use candle_nn::kv_cache as candles;

use super::*;

/// A reset once in ten, and appends of no to eleven positions.
fn run_kv(seed: u64, size: usize, graph: Graph, dtype: DType) -> Result<()> {
    let mut random = Random(seed);
    let mut a = ours::KvCache::new(DIM, size);
    let mut b = candles::KvCache::new(DIM, size);
    let mut returned = Returned::default();
    for _ in 0..60 {
        if random.below(10) == 0 {
            a.reset();
            b.reset();
        } else {
            let count = random.below(12);
            let (k, v) = (
                random.positions(count, dtype)?,
                random.positions(count, dtype)?,
            );
            let tracked = graph.next(&mut random);
            let (all_k, all_v) = a.append(&in_graph(&k, tracked.0)?, &in_graph(&v, tracked.1)?)?;
            let (candles_k, candles_v) = b.append(&k, &v)?;
            if count > 0 {
                assert_eq!((all_k.track_op(), all_v.track_op()), tracked);
            }
            returned.push(all_k, &candles_k)?;
            returned.push(all_v, &candles_v)?;
        }
        same(&a.k()?, &b.k()?)?;
        same(&a.v()?, &b.v()?)?;
        assert_eq!(a.current_seq_len(), b.current_seq_len());
        for (a, b) in [(a.k_cache(), b.k_cache()), (a.v_cache(), b.v_cache())] {
            assert_eq!(a.current_seq_len(), b.current_seq_len());
            assert_eq!((a.dim(), a.max_seq_len()), (b.dim(), b.max_seq_len()));
            if graph == Graph::Never {
                same(a.all_data(), b.all_data())?;
            }
        }
    }
    returned.are_unchanged()
}

#[test]
fn kv_cache_returns_what_candles_does() -> Result<()> {
    for graph in GRAPHS {
        for (seed, size) in [1, 2, 3, 5, 8, 16, 100].into_iter().enumerate() {
            run_kv(seed as u64 + 1, size, graph, DType::F32)?;
        }
        for dtype in [DType::F64, DType::F16, DType::BF16] {
            run_kv(20, 7, graph, dtype)?;
        }
    }
    Ok(())
}

#[test]
fn concat_kv_cache_returns_what_candles_does() -> Result<()> {
    for (seed, graph) in GRAPHS.into_iter().enumerate() {
        let mut random = Random(seed as u64 + 1);
        let mut a = ours::ConcatKvCache::new(DIM);
        let mut b = candles::ConcatKvCache::new(DIM);
        let mut returned = Returned::default();
        for _ in 0..100 {
            if random.below(10) == 0 {
                a.reset();
                b.reset();
            } else {
                let count = random.below(12);
                let k = random.positions(count, DType::F32)?;
                let v = random.positions(count, DType::F32)?;
                let tracked = graph.next(&mut random);
                let (all_k, all_v) =
                    a.append(&in_graph(&k, tracked.0)?, &in_graph(&v, tracked.1)?)?;
                let (candles_k, candles_v) = b.append(&k, &v)?;
                if count > 0 {
                    assert_eq!((all_k.track_op(), all_v.track_op()), tracked);
                }
                returned.push(all_k, &candles_k)?;
                returned.push(all_v, &candles_v)?;
            }
            same(&a.k().cloned(), &b.k().cloned())?;
            same(&a.v().cloned(), &b.v().cloned())?;
            assert_eq!(a.current_seq_len(), b.current_seq_len());
            assert_eq!((a.is_empty(), a.dim()), (b.is_empty(), b.dim()));
        }
        returned.are_unchanged()?;
        same(&a.k_mut().cloned(), &b.k_mut().cloned())?;
        same(&a.v_mut().cloned(), &b.v_mut().cloned())?;
        let (a, b) = (a.into_inner().unzip(), b.into_inner().unzip());
        same(&a.0, &b.0)?;
        same(&a.1, &b.1)?;
    }
    Ok(())
}

/// `Cache` alone: appends end a graph, and their values are candle's.
#[test]
fn cache_returns_what_candles_does() -> Result<()> {
    let mut random = Random(9);
    let mut a = ours::KvCache::new(DIM, 4);
    let mut b = candles::KvCache::new(DIM, 4);
    for step in 0..40 {
        let count = random.below(6);
        let new = random.positions(count, DType::F32)?;
        a.k_cache_mut().append(&in_graph(&new, step % 3 == 0)?)?;
        b.k_cache_mut().append(&new)?;
        same(&a.k_cache().current_data()?, &b.k_cache().current_data()?)?;
        if step % 9 == 8 {
            a.k_cache_mut().reset();
            b.k_cache_mut().reset();
        }
    }
    assert!(a.v()?.is_none());
    Ok(())
}
