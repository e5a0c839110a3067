use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn::{Attention, attention};

use super::{Plain, inputs};
use crate::check::{agrees_from_output as agrees, same_bits};

/// What weights are multiplied by, seen through values that are the identity matrix.
fn kept(options: &Attention, sizes: [usize; 7]) -> Result<Tensor> {
    let [q, k, _] = inputs(sizes);
    let (batch, heads, keys, _) = k.dims4()?;
    let identity = Tensor::eye(keys, DType::F64, &Device::Cpu)?;
    let identity = identity.broadcast_as((batch, heads, keys, keys))?;
    let dropped = attention(&q, &k, &identity, options)?;
    let whole = Plain::default().run(&q, &k, &identity)?;
    dropped / whole
}

#[test]
fn the_seed_decides_what_is_dropped() -> Result<()> {
    let sizes = [2, 4, 2, 150, 300, 3, 3];
    let options = |seed| Attention::default().dropout(0.25, seed);
    let factors = kept(&options(1), sizes)?;
    same_bits(&factors, &kept(&options(1), sizes)?)?;
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
    let others: Vec<f64> = kept(&options(2), sizes)?.flatten_all()?.to_vec1()?;
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
        let options = Attention::default().dropout(0.25, 5);
        let plain = Plain {
            kept: Some(
                (kept(&options, sizes)? * 3.)?
                    .round()?
                    .affine(1. / 3., 0.)?,
            ),
            ..Plain::default()
        };
        agrees(
            &|x| attention(&x[0], &x[1], &x[2], &options),
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
        &attention(&q, &k, &v, &Attention::default().dropout(0., 5))?,
        &attention(&q, &k, &v, &Attention::default())?,
    )
}
