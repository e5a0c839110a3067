//! What is not copied, strided tensors, and wrong ones.

use candle_core::{DType, Result, Tensor, Var};
use candle_headroom_nn::kv_cache::{ConcatKvCache, KvCache, RotatingKvCache};

use super::*;

fn new(count: usize, seed: u64) -> Result<Tensor> {
    let values = numbers(&[2, 3, count, 4], seed).to_dtype(DType::F32)?;
    Var::from_tensor(&values)?.affine(1., 0.)
}

/// Neither for the graph nor for the cache.
#[test]
fn an_empty_cache_copies_nothing() -> Result<()> {
    let (k, v) = (new(6, 1)?, new(6, 2)?);
    let mut kv = KvCache::new(DIM, 4);
    let mut wide = RotatingKvCache::new(DIM, 100);
    let mut narrow = RotatingKvCache::new(DIM, 4);
    let mut concat = ConcatKvCache::new(DIM);
    for _ in 0..2 {
        for (all_k, all_v) in [
            kv.append(&k, &v)?,
            wide.append(&k, &v)?,
            narrow.append(&k, &v)?,
            concat.append(&k, &v)?,
        ] {
            assert_eq!((all_k.id(), all_v.id()), (k.id(), v.id()));
        }
        let kept = [kv.k()?, wide.k()?, concat.k().cloned(), narrow.k()?];
        let [kv_k, wide_k, concat_k, narrow_k] = kept.map(|kept| kept.expect("keys"));
        for kept in [kv_k, wide_k, concat_k] {
            assert_eq!((kept.dims(), address(&kept)), (k.dims(), address(&k)));
        }
        assert_eq!(address(&narrow_k), address(&k.narrow(DIM, 2, 4)?));
        kv.reset();
        wide.reset();
        narrow.reset();
        concat.reset();
    }
    Ok(())
}

/// An optimizer writes to a Var. What was appended stays.
#[test]
fn a_var_is_not_shared() -> Result<()> {
    let values = numbers(&[2, 3, 6, 4], 1).to_dtype(DType::F32)?;
    for size in [4, 100] {
        let var = Var::from_tensor(&values)?;
        let (mut kv, mut rotating) = (KvCache::new(DIM, size), RotatingKvCache::new(DIM, size));
        let mut concat = ConcatKvCache::new(DIM);
        kv.append(&var, &var)?;
        rotating.append(&var, &var)?;
        let (all_k, all_v) = concat.append(&var, &var)?;
        assert_eq!((all_k.id(), all_v.id()), (var.id(), var.id()));
        var.set(&values.zeros_like()?)?;
        same(&kv.k()?, &Some(values.clone()))?;
        same(&concat.k().cloned(), &Some(values.clone()))?;
        same(&concat.v().cloned(), &Some(values.clone()))?;
        let last = size.min(6);
        same(&rotating.v()?, &Some(values.narrow(DIM, 6 - last, last)?))?;
    }
    Ok(())
}

#[test]
fn strided_tensors_are_accepted() -> Result<()> {
    let strided = |tracked: bool, seed| -> Result<Tensor> {
        let values = numbers(&[2, 5, 3, 4], seed).to_dtype(DType::F32)?;
        in_graph(&values, tracked)?.transpose(1, 2)
    };
    for tracked in [
        [false; 3],
        [true; 3],
        [true, false, true],
        [false, true, false],
    ] {
        let mut kv = KvCache::new(DIM, 4);
        let mut rotating = RotatingKvCache::new(DIM, 8);
        let mut concat = ConcatKvCache::new(DIM);
        let mut all = Vec::new();
        for (seed, tracked) in tracked.into_iter().enumerate() {
            let new = strided(tracked, seed as u64)?;
            all.push(new.detach());
            let expected = Tensor::cat(&all, DIM)?;
            same_bits(&kv.append(&new, &new)?.0, &expected)?;
            same_bits(&concat.append(&new, &new)?.1, &expected)?;
            let order: Vec<u32> = rotating.positions(5).iter().map(|&at| at as u32).collect();
            let order = Tensor::new(order, &cpu())?;
            let expected = expected.contiguous()?.index_select(&order, DIM)?;
            same_bits(&rotating.append(&new, &new)?.0, &expected)?;
        }
    }
    Ok(())
}

/// Each is an error with and without a graph, after which the cache goes on as if it had not been.
#[test]
fn wrong_tensors_are_errors() -> Result<()> {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &cpu());
    let wrong = [
        zeros(&[2, 3, 1, 5], DType::F32)?,
        zeros(&[1, 3, 1, 4], DType::F32)?,
        zeros(&[2, 3, 1, 4], DType::F64)?,
        zeros(&[2, 3], DType::F32)?,
        zeros(&[], DType::F32)?,
        zeros(&[2, 3, 1, 4, 1], DType::F32)?,
    ];
    for tracked in [false, true] {
        let right = in_graph(&new(3, 1)?.detach(), tracked)?;
        let mut kv = KvCache::new(DIM, 4);
        let mut rotating = RotatingKvCache::new(DIM, 4);
        let mut concat = ConcatKvCache::new(DIM);
        // Keys alone are not kept.
        let flat = in_graph(&zeros(&[2, 3], DType::F32)?, tracked)?;
        assert!(kv.append(&right, &flat).is_err() && kv.k()?.is_none());
        assert!(rotating.append(&right, &flat).is_err() && rotating.k()?.is_none());
        kv.append(&right, &right)?;
        rotating.append(&right, &right)?;
        concat.append(&right, &right)?;
        for wrong in &wrong {
            let wrong = in_graph(wrong, tracked)?;
            for (k, v) in [(&wrong, &right), (&right, &wrong)] {
                assert!(kv.append(k, v).is_err(), "{wrong:?}");
                assert!(concat.append(k, v).is_err(), "{wrong:?}");
                assert!(rotating.append(k, v).is_err(), "{wrong:?}");
            }
        }
        let twice = Tensor::cat(&[&right, &right], DIM)?.detach();
        assert_eq!((kv.current_seq_len(), rotating.current_seq_len()), (3, 3));
        same_bits(&kv.append(&right, &right)?.1, &twice)?;
        same_bits(&concat.append(&right, &right)?.1, &twice)?;
        assert_eq!(concat.k().expect("keys").dims(), twice.dims());
        let ring = twice.index_select(&Tensor::new(&[4u32, 5, 2, 3], &cpu())?, DIM)?;
        same_bits(&rotating.append(&right, &right)?.1, &ring)?;
    }
    Ok(())
}

/// candle's `KvCache` grows by nothing for ever, and its `RotatingKvCache` divides by 0.
#[test]
fn caches_without_room() -> Result<()> {
    for tracked in [false, true] {
        let k = in_graph(&new(2, 1)?.detach(), tracked)?;
        let mut kv = KvCache::new(DIM, 0);
        let error = kv.append(&k, &k).unwrap_err().to_string();
        assert!(error.contains("no room for 2 positions"), "{error}");
        let mut rotating = RotatingKvCache::new(DIM, 0);
        same_bits(&rotating.append(&k, &k)?.0, &k)?;
        assert_eq!(rotating.k()?.expect("a ring").dims(), [2, 3, 0, 4]);
        assert_eq!(rotating.positions(0), [0usize; 0]);
        assert_eq!(rotating.positions(2), [2, 3]);
    }
    Ok(())
}
