use candle_core::{DType, Device, Result, Tensor};
use candle_headroom_nn::{Attention, attention, ops, seeded};

use super::{Plain, inputs};
use crate::check::{agrees_from_output as agrees, same_bits};

/// What weights are multiplied by, seen through values that are the identity matrix.
fn kept(rate: f64, seed: u64, sizes: [usize; 7]) -> Result<Tensor> {
    let options = Attention::default().dropout(rate);
    let [q, k, _] = inputs(sizes);
    let (batch, heads, keys, _) = k.dims4()?;
    let identity = Tensor::eye(keys, DType::F64, &Device::Cpu)?;
    let identity = identity.broadcast_as((batch, heads, keys, keys))?;
    let dropped = seeded(seed, || attention(&q, &k, &identity, &options))?;
    let whole = Plain::default().run(&q, &k, &identity)?;
    dropped / whole
}

#[test]
fn the_seed_decides_what_is_dropped() -> Result<()> {
    let sizes = [2, 4, 2, 150, 300, 3, 3];
    let factors = kept(0.25, 1, sizes)?;
    same_bits(&factors, &kept(0.25, 1, sizes)?)?;
    let values: Vec<f64> = factors.flatten_all()?.to_vec1()?;
    let dropped = values.iter().filter(|factor| **factor == 0.).count() as f64;
    let others = values.iter().filter(|factor| **factor != 0.);
    assert!(
        others
            .into_iter()
            .all(|factor| (factor * 0.75 - 1.).abs() < 1e-9)
    );
    // The standard deviation of the share is 0.0007.
    let share = dropped / values.len() as f64;
    assert!(
        (share - 0.25).abs() < 0.004,
        "a share of {share} is dropped"
    );
    // Seeds that follow each other share no more than by chance: 0.75² + 0.25² of the decisions.
    let others: Vec<f64> = kept(0.25, 2, sizes)?.flatten_all()?.to_vec1()?;
    let same = values
        .iter()
        .zip(&others)
        .filter(|(a, b)| (**a == 0.) == (**b == 0.));
    let share = same.count() as f64 / values.len() as f64;
    assert!(
        (share - 0.625).abs() < 0.004,
        "{share} of the decisions are the same"
    );
    Ok(())
}

/// The backward pass goes over other tiles than the forward pass, and drops the same weights.
#[test]
fn gradients_agree_with_plain_operations() -> Result<()> {
    for sizes in [[2, 4, 2, 7, 9, 3, 3], [1, 2, 1, 150, 300, 3, 3]] {
        let options = Attention::default().dropout(0.25);
        let plain = Plain {
            kept: Some((kept(0.25, 5, sizes)? * 3.)?.round()?.affine(1. / 3., 0.)?),
            ..Plain::default()
        };
        agrees(
            &|x| seeded(5, || attention(&x[0], &x[1], &x[2], &options)),
            &|x| plain.run(&x[0], &x[1], &x[2]),
            &inputs(sizes),
        )?;
    }
    Ok(())
}

#[test]
fn a_rate_of_zero_drops_nothing() -> Result<()> {
    let [q, k, v] = inputs([1, 2, 2, 5, 5, 3, 3]);
    same_bits(
        &attention(&q, &k, &v, &Attention::default().dropout(0.))?,
        &attention(&q, &k, &v, &Attention::default())?,
    )
}

/// Each call within a scope is a draw of its own; without one, no two calls are alike.
#[test]
fn each_call_draws_anew() -> Result<()> {
    let [q, k, v] = inputs([1, 2, 2, 30, 30, 3, 3]);
    let options = Attention::default().dropout(0.5);
    let twice = || -> Result<[Tensor; 2]> {
        let run = || attention(&q, &k, &v, &options);
        Ok([run()?, run()?])
    };
    let differ = |[a, b]: &[Tensor; 2]| -> Result<bool> {
        Ok((a - b)?.abs()?.max_all()?.to_scalar::<f64>()? > 1e-3)
    };
    let first = seeded(3, twice)?;
    let again = seeded(3, twice)?;
    assert!(differ(&first)? && differ(&twice()?)?);
    same_bits(&first[0], &again[0])?;
    same_bits(&first[1], &again[1])
}

/// A model that passes on the seed of its scope must not drop the same elements twice.
#[test]
fn attention_and_dropout_draw_other_numbers_from_one_seed() -> Result<()> {
    let (seed, rate) = (7, 0.5);
    let sizes = [1, 1, 1, 64, 64, 3, 3];
    let of_attention = kept(rate, seed, sizes)?;
    let ones = of_attention.ones_like()?;
    let first = seeded(seed, || ops::dropout(&ones, rate as f32))?;
    let given = ops::dropout_with_seed(&ones, rate as f32, seed)?;
    let dropped = |of: &Tensor| -> Result<Vec<u8>> { of.eq(0.)?.flatten_all()?.to_vec1() };
    let masks = [dropped(&of_attention)?, dropped(&first)?, dropped(&given)?];
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        let same = masks[a].iter().zip(&masks[b]).filter(|(a, b)| a == b);
        let share = same.count() as f64 / masks[a].len() as f64;
        // The standard deviation of the share of independent ones is 0.008.
        assert!((share - 0.5).abs() < 0.04, "{a} and {b}: {share}");
    }
    Ok(())
}
