//! `ScatteredKvCache` and its builder.

use candle_core::{DType, Result, Tensor, Var};
use candle_headroom_nn::kv_cache as ours;
use candle_nn::kv_cache as candles;

use super::*;

const HEADS: usize = 2;
const WIDTH: usize = 3;

fn run(seed: u64, context: usize, graph: Graph, dtype: DType) -> Result<()> {
    let mut random = Random(seed);
    let batch = 3;
    let mut a = ours::ScatteredCacheBuilder::new(batch, context, dtype, &cpu())?;
    let mut b = candles::ScatteredCacheBuilder::new(batch, context, dtype, &cpu())?;
    let (mut cache_a, mut cache_b) = (a.make_cache(HEADS, WIDTH)?, b.make_cache(HEADS, WIDTH)?);
    for _ in 0..40 {
        match random.below(12) {
            0 => {
                a.reset();
                b.reset();
            }
            1 | 2 => {
                let index = random.below(batch);
                a.reset_batch_index(index);
                b.reset_batch_index(index);
            }
            _ => {}
        }
        let count = 1 + random.below(context + 1);
        let active: Vec<bool> = (0..batch).map(|_| random.below(3) > 0).collect();
        let (iam_a, iam_b) = (
            a.indices_and_mask(count, &active)?,
            b.indices_and_mask(count, &active)?,
        );
        same_bits(iam_a.mask(), iam_b.mask())?;
        assert_eq!(
            (a.positions(), a.batch_size()),
            (b.positions(), b.batch_size())
        );

        let shape = [batch, HEADS, count, WIDTH];
        let k = numbers(&shape, random.0 | 1).to_dtype(dtype)?;
        let v = numbers(&shape, random.0 | 2).to_dtype(dtype)?;
        let tracked = graph.next(&mut random);
        let vars = (Var::from_tensor(&k)?, Var::from_tensor(&v)?);
        let new = |var: &Var, tracked| match tracked {
            true => var.affine(1., 0.),
            false => Ok(var.as_detached_tensor()),
        };
        let (all_k, all_v) =
            cache_a.append(&new(&vars.0, tracked.0)?, &new(&vars.1, tracked.1)?, &iam_a)?;
        let (candles_k, candles_v) = cache_b.append(&k, &v, &iam_b)?;
        same_bits(&all_k, &candles_k)?;
        same_bits(&all_v, &candles_v)?;
        same_bits(cache_a.k(), cache_b.k())?;
        same_bits(cache_a.v(), cache_b.v())?;
        assert!(!cache_a.k().track_op() && !cache_a.v().track_op());
        if tracked.0 {
            gradients_go_back_to_where_values_come_from(&vars.0, &all_k)?;
        }
        if tracked.1 {
            gradients_go_back_to_where_values_come_from(&vars.1, &all_v)?;
        }
    }
    Ok(())
}

/// The gradient of each new number is the weight of its place in the output, or 0 where it is in none: numbers come only once.
fn gradients_go_back_to_where_values_come_from(new: &Var, all: &Tensor) -> Result<()> {
    let weights = numbers(all.dims(), 5).to_dtype(all.dtype())?;
    let gradients = (all * &weights)?.sum_all()?.backward()?;
    let flat = |tensor: &Tensor| -> Result<Vec<Vec<f64>>> {
        let rows = tensor.dim(0)? * tensor.dim(1)?;
        tensor.to_dtype(DType::F64)?.reshape((rows, ()))?.to_vec2()
    };
    let gradient = flat(gradients.get(new).expect("a gradient"))?;
    let (new, all, weights) = (flat(new)?, flat(all)?, flat(&weights)?);
    for (row, numbers) in new.iter().enumerate() {
        for (column, number) in numbers.iter().enumerate() {
            let place = all[row].iter().position(|found| found == number);
            let expected = place.map_or(0., |place| weights[row][place]);
            assert_eq!(gradient[row][column], expected);
        }
    }
    Ok(())
}

#[test]
fn scattered_kv_cache_returns_what_candles_does() -> Result<()> {
    for graph in GRAPHS {
        for (seed, context) in [1, 2, 3, 5, 9].into_iter().enumerate() {
            run(seed as u64 + 1, context, graph, DType::F32)?;
        }
        run(8, 6, graph, DType::F64)?;
    }
    Ok(())
}

#[test]
fn half_types() -> Result<()> {
    for dtype in [DType::F16, DType::BF16] {
        let mut builder = ours::ScatteredCacheBuilder::new(1, 4, dtype, &cpu())?;
        let mut cache = builder.make_cache(HEADS, WIDTH)?;
        let var = Var::from_tensor(&numbers(&[1, HEADS, 2, WIDTH], 1).to_dtype(dtype)?)?;
        let iam = builder.indices_and_mask(2, &[true])?;
        let (k, _) = cache.append(&var, &var, &iam)?;
        let gradients = (k * 3.)?.sum_all()?.backward()?;
        let expected = (var.as_tensor().ones_like()? * 3.)?;
        same_bits(gradients.get(&var).expect("a gradient"), &expected)?;
    }
    Ok(())
}

#[test]
fn odd_batches_are_errors() -> Result<()> {
    let mut builder = ours::ScatteredCacheBuilder::new(2, 4, DType::F32, &cpu())?;
    for wrong in [&[true][..], &[true; 3]] {
        let error = builder.indices_and_mask(1, wrong).unwrap_err().to_string();
        assert!(error.contains("for 2 sequences"), "{error}");
    }
    builder.reset_batch_index(2);
    assert_eq!(builder.positions(), [0, 0]);
    let _ = builder.indices_and_mask(0, &[true; 2]); // no panic
    let iam = builder.indices_and_mask(3, &[true; 2])?;
    let mut cache = builder.make_cache(HEADS, WIDTH)?;
    let wrong = Tensor::zeros((2, HEADS, 2, WIDTH), DType::F32, &cpu())?;
    assert!(cache.append(&wrong, &wrong, &iam).is_err());
    let tracked = in_graph(&wrong, true)?;
    assert!(cache.append(&tracked, &tracked, &iam).is_err());
    assert!(cache.append(&tracked.get(0)?, &tracked, &iam).is_err());
    Ok(())
}
