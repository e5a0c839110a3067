//! Gradients are those of a plain concatenation of constants and the new positions.

use candle_core::{DType, Result, Tensor, Var};
use candle_headroom_nn::kv_cache::{
    ConcatKvCache, KvCache, RotatingKvCache, ScatteredCacheBuilder,
};

use super::*;
use crate::check::{agrees, difference};

type Pair = (Tensor, Tensor);

/// Compares what appends of `counts` positions each return with `expected` of all positions so far.
fn agree(
    counts: &[usize],
    mut append: impl FnMut(&Tensor, &Tensor) -> Result<Pair>,
    expected: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<()> {
    let mut random = Random(counts.iter().sum::<usize>() as u64 + 1);
    let mut before: Option<Pair> = None;
    let mut earlier: Vec<Var> = Vec::new();
    for &count in counts {
        let k = Var::from_tensor(&random.positions(count, DType::F64)?)?;
        let v = Var::from_tensor(&random.positions(count, DType::F64)?)?;
        let all = append(&k.affine(2., 1.)?, &v.sin()?)?;
        let plain = (k.affine(2., 1.)?, v.sin()?);
        let joined = match &before {
            Some((k, v)) => (
                Tensor::cat(&[k, &plain.0], DIM)?,
                Tensor::cat(&[v, &plain.1], DIM)?,
            ),
            None => plain,
        };
        before = Some((joined.0.detach(), joined.1.detach()));
        let expected = (expected(&joined.0)?, expected(&joined.1)?);
        same_bits(&all.0, &expected.0)?;
        same_bits(&all.1, &expected.1)?;

        let gradients = |(all_k, all_v): &Pair| {
            let weights = numbers(all_k.dims(), 3);
            ((all_k * &weights)? + (all_v.sqr()? * weights)?)?
                .sum_all()?
                .backward()
        };
        let (ours, plain) = (gradients(&all)?, gradients(&expected)?);
        for var in [&k, &v] {
            let found = ours.get(var).expect("a gradient");
            same_bits(found, plain.get(var).expect("a gradient"))?;
        }
        assert!(earlier.iter().all(|var| ours.get(var).is_none()));
        earlier.extend([k, v]);
    }
    Ok(())
}

const COUNTS: [&[usize]; 4] = [&[5], &[1, 1, 1], &[7, 3, 1, 12, 1], &[2, 9, 4, 4, 4]];

#[test]
fn kv_cache() -> Result<()> {
    for counts in COUNTS {
        for size in [1, 4, 64] {
            let mut cache = KvCache::new(DIM, size);
            agree(counts, |k, v| cache.append(k, v), |all| Ok(all.clone()))?;
        }
    }
    Ok(())
}

#[test]
fn concat_kv_cache() -> Result<()> {
    for counts in COUNTS {
        let mut cache = ConcatKvCache::new(DIM);
        agree(counts, |k, v| cache.append(k, v), |all| Ok(all.clone()))?;
    }
    Ok(())
}

/// All positions in the order that candle's cache gives.
#[test]
fn rotating_kv_cache() -> Result<()> {
    for counts in COUNTS {
        for size in 1..10 {
            let mut cache = RotatingKvCache::new(DIM, size);
            let mut like = candle_nn::kv_cache::RotatingKvCache::new(DIM, size);
            let positions = std::cell::RefCell::new(Vec::new());
            let append = |k: &Tensor, v: &Tensor| {
                let count = k.dim(DIM)?;
                let first = like.current_seq_len();
                // Where no older position is returned, the new ones come in their own order.
                *positions.borrow_mut() = match count >= size {
                    true => (first..first + count).collect(),
                    false => like.positions(count),
                };
                like.append(&k.detach(), &v.detach())?;
                cache.append(k, v)
            };
            agree(counts, append, |all| {
                let order: Vec<u32> = positions.borrow().iter().map(|&at| at as u32).collect();
                all.index_select(&Tensor::new(order, &cpu())?, DIM)
            })?;
        }
    }
    Ok(())
}

/// An append with a graph after some without, and the other way around.
#[test]
fn graphs_begin_and_end_between_appends() -> Result<()> {
    let mut random = Random(4);
    let mut cache = RotatingKvCache::new(DIM, 5);
    let constant = random.positions(4, DType::F32)?;
    cache.append(&constant, &constant)?;
    let var = Var::from_tensor(&random.positions(3, DType::F32)?)?;
    let (k, _) = cache.append(&var, &constant.narrow(DIM, 0, 3)?)?;
    let gradient = |all: &Tensor| -> Result<Tensor> {
        let weights = numbers(all.dims(), 8).to_dtype(DType::F32)?;
        let gradients = (all * weights)?.sum_all()?.backward()?;
        Ok(gradients.get(&var).expect("a gradient").clone())
    };
    let before = gradient(&k)?;
    let values = k.force_contiguous()?;
    for _ in 0..7 {
        let one = random.positions(1, DType::F32)?;
        cache.append(&one, &one)?;
    }
    same_bits(&k, &values)?;
    same_bits(&gradient(&k)?, &before)?;
    // 0 to 3, then 4 to 6, of which 5 and 6 lie at the start of the ring.
    let weights = numbers(k.dims(), 8).to_dtype(DType::F32)?;
    let weights = Tensor::cat(
        &[weights.narrow(DIM, 4, 1)?, weights.narrow(DIM, 0, 2)?],
        DIM,
    )?;
    same_bits(&before, &weights)
}

/// Along each dimension, of all types and layouts.
#[test]
fn each_dimension_and_layout() -> Result<()> {
    for dim in 0..4 {
        let inputs = [numbers(&[3, 3, 3, 3], 1), numbers(&[3, 3, 3, 3], 2)];
        let sum = |pair: Pair| pair.0 * pair.1.sqr()?;
        let plain = |inputs: &[Tensor]| {
            let [k, v] = inputs else {
                panic!("keys and values");
            };
            let twice = |new: &Tensor| Tensor::cat(&[&new.detach(), new], dim);
            sum((twice(k)?, twice(v)?))
        };
        let growing = |inputs: &[Tensor]| {
            let mut cache = KvCache::new(dim, 4);
            cache.append(&inputs[0].detach(), &inputs[1].detach())?;
            sum(cache.append(&inputs[0], &inputs[1])?)
        };
        agrees(&growing, &plain, &inputs)?;
        let concat = |inputs: &[Tensor]| {
            let mut cache = ConcatKvCache::new(dim);
            cache.append(&inputs[0].detach(), &inputs[1].detach())?;
            sum(cache.append(&inputs[0], &inputs[1])?)
        };
        agrees(&concat, &plain, &inputs)?;
        let last = |new: &Tensor| {
            let old = new.detach();
            // A ring of 4 after 3 and 3 positions.
            let parts = [
                new.narrow(dim, 1, 2)?,
                old.narrow(dim, 2, 1)?,
                new.narrow(dim, 0, 1)?,
            ];
            Tensor::cat(&parts, dim)
        };
        let plain = |inputs: &[Tensor]| sum((last(&inputs[0])?, last(&inputs[1])?));
        let rotating = |inputs: &[Tensor]| {
            let mut cache = RotatingKvCache::new(dim, 4);
            cache.append(&inputs[0].detach(), &inputs[1].detach())?;
            sum(cache.append(&inputs[0], &inputs[1])?)
        };
        agrees(&rotating, &plain, &inputs)?;
    }
    Ok(())
}

/// Rings of constants are overwritten. A copy keeps what a query's gradient is computed from.
#[test]
fn queries_over_copies_of_rings_of_constants() -> Result<()> {
    for copied in [true, false] {
        let mut random = Random(9);
        let query = Var::from_tensor(&random.positions(1, DType::F64)?)?;
        let mut rotating = RotatingKvCache::new(DIM, 4);
        let mut builder = ScatteredCacheBuilder::new(2, 4, DType::F64, &cpu())?;
        let mut scattered = builder.make_cache(3, 4)?;
        let (mut scores, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..9 {
            let new = random.positions(1, DType::F64)?;
            let places = builder.indices_and_mask(1, &[true; 2])?;
            let rings = [
                rotating.append(&new, &new)?.0,
                scattered.append(&new, &new, &places)?.0,
            ];
            for ring in rings {
                // A sum of products of the query with the keys.
                let (then, ring) = (
                    ring.force_contiguous()?,
                    match copied {
                        true => ring.copy()?,
                        false => ring,
                    },
                );
                expected.push(query.broadcast_mul(&then)?.sum_all()?);
                scores.push(query.broadcast_mul(&ring)?.sum_all()?);
            }
        }
        let gradient = |scores: &[Tensor]| -> Result<Tensor> {
            let gradients = Tensor::stack(scores, 0)?.sum_all()?.backward()?;
            Ok(gradients.get(&query).expect("a gradient").clone())
        };
        let off = difference(&gradient(&scores)?, &gradient(&expected)?);
        // If it is small without copies too, the rings do not change any more, and the documentation need not ask for copies.
        assert_eq!(off < 1e-12, copied, "{off:e}");
    }
    Ok(())
}
