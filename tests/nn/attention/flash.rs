use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_headroom::nn;
use candle_headroom::nn::attention::AttnMask;

use super::{Plain, coarse, inputs};
use crate::check::{agrees_from_output as agrees, difference, numbers};

/// q, k and v as (batch, positions, heads, width), in f32.
fn positions(sizes: [usize; 7]) -> Result<[Tensor; 3]> {
    let [q, k, v] = inputs(sizes).map(|x| x.transpose(1, 2)?.contiguous()?.to_dtype(DType::F32));
    Ok([q?, k?, v?])
}

/// Asserts that results in f32 agree.
fn close(a: &Tensor, b: &Tensor) -> Result<()> {
    let off = difference(&a.to_dtype(DType::F64)?, &b.to_dtype(DType::F64)?);
    assert!(off < 2e-6, "{off:e} off");
    Ok(())
}

#[test]
fn flash_attn_equals_candles() -> Result<()> {
    let mask = coarse(&[5, 9], 4)?.to_dtype(DType::F32)?;
    let masks = [
        AttnMask::None,
        AttnMask::causal_with_offset(4),
        AttnMask::causal(),
        AttnMask::Mask(mask),
    ];
    for mask in masks {
        for (max_bias, softcap) in [
            (None, None),
            (None, Some(1.5)),
            (Some(8.), None),
            (Some(4.), Some(2.)),
        ] {
            if matches!(mask, AttnMask::None) && max_bias.is_some() {
                continue; // candle leaves out ALiBi's bias for a batch of one
            }
            for sizes in [[1, 4, 2, 5, 9, 8, 8], [1, 6, 1, 5, 9, 4, 4]] {
                let [q, k, v] = positions(sizes)?;
                let theirs = candle_nn::attention::flash_attn::<f32>(
                    &q,
                    &k,
                    &v,
                    0.4,
                    mask.clone(),
                    max_bias,
                    softcap,
                )?;
                let ours = nn::attention::flash_attn::<f32>(
                    &q,
                    &k,
                    &v,
                    0.4,
                    mask.clone(),
                    max_bias,
                    softcap,
                )?;
                close(&ours, &theirs)?;
            }
        }
    }
    // One query sees all keys; several samples.
    for (sizes, offset) in [([1, 4, 2, 1, 9, 8, 8], 0), ([3, 4, 2, 5, 9, 8, 8], 4)] {
        for max_bias in [None, Some(8.)] {
            let [q, k, v] = positions(sizes)?;
            let mask = AttnMask::causal_with_offset(offset);
            let theirs = candle_nn::attention::flash_attn::<f32>(
                &q,
                &k,
                &v,
                0.4,
                mask.clone(),
                max_bias,
                None,
            )?;
            let ours = nn::attention::flash_attn::<f32>(&q, &k, &v, 0.4, mask, max_bias, None)?;
            close(&ours, &theirs)?;
        }
    }
    Ok(())
}

#[test]
fn flash_attn_has_gradients_for_all_that_candle_refuses() -> Result<()> {
    let mask = coarse(&[1, 1, 3, 5], 4)?;
    let plain = Plain {
        mask: Some(mask.clone()),
        scale: Some(0.5),
        softcap: Some(1.5),
        ..Plain::default()
    };
    agrees(
        &|x| {
            let mask = AttnMask::Mask(mask.to_dtype(x[0].dtype())?);
            nn::attention::flash_attn::<f32>(&x[0], &x[1], &x[2], 0.5, mask, None, Some(1.5))
        },
        &|x| {
            let heads = |x: &Tensor| x.transpose(1, 2)?.contiguous();
            plain.run(&heads(&x[0])?, &heads(&x[1])?, &heads(&x[2])?)
        },
        &[
            numbers(&[2, 3, 4, 6], 1),
            numbers(&[2, 5, 2, 6], 2),
            numbers(&[2, 5, 2, 6], 3),
        ],
    )
}

#[test]
fn sdpa_agrees_with_plain_operations() -> Result<()> {
    let mask = coarse(&[2, 4, 3, 5], 6)?;
    let plain = Plain {
        mask: Some(mask.clone()),
        last_seen: Some(2),
        scale: Some(0.25),
        softcap: Some(2.),
        ..Plain::default()
    };
    agrees(
        &|x| {
            let mask = mask.to_dtype(x[0].dtype())?;
            nn::ops::sdpa(&x[0], &x[1], &x[2], Some(&mask), true, 0.25, 2.)
        },
        &|x| plain.run(&x[0], &x[1], &x[2]),
        &inputs([2, 4, 2, 3, 5, 4, 4]),
    )?;
    agrees(
        &|x| nn::ops::sdpa(&x[0], &x[1], &x[2], None, false, 0.25, 1.),
        &|x| {
            let plain = Plain {
                scale: Some(0.25),
                ..Plain::default()
            };
            plain.run(&x[0], &x[1], &x[2])
        },
        &inputs([2, 4, 2, 3, 5, 4, 4]),
    )
}

#[test]
fn packed_sequences_equal_candles_and_get_gradients() -> Result<()> {
    let vars =
        [[9, 4, 6], [12, 2, 6], [12, 2, 6]].map(|shape| numbers(&shape, 3).to_dtype(DType::F32));
    let [q, k, v] = vars.map(|x| x.and_then(|x| Var::from_tensor(&x)));
    let (q, k, v) = (q?, k?, v?);
    let queries = Tensor::new(&[3u32, 5, 1], &Device::Cpu)?;
    let keys = Tensor::new(&[4u32, 7, 1], &Device::Cpu)?;
    let slopes = Tensor::new(&[0.5f32, 0.25, 0.125, 0.0625], &Device::Cpu)?;
    for (causal, window, slopes) in [
        (false, (None, None), None),
        (true, (None, None), Some(&slopes)),
        (false, (Some(1), Some(2)), Some(&slopes)),
        (true, (Some(2), None), None),
    ] {
        let (left, right) = window;
        let theirs = candle_nn::attention::flash_attn_varlen_unfused(
            &q, &k, &v, slopes, &queries, &keys, 5, 7, 0.4, causal, left, right,
        )?;
        let ours = nn::attention::flash_attn_varlen_unfused(
            &q, &k, &v, slopes, &queries, &keys, 5, 7, 0.4, causal, left, right,
        )?;
        close(&ours, &theirs)?;
        let store = ours.sqr()?.sum_all()?.backward()?;
        for var in [&q, &k, &v] {
            let gradient = store.get(var).expect("a gradient");
            let each = gradient
                .abs()?
                .sum_keepdim(D::Minus1)?
                .flatten_all()?
                .to_vec1::<f32>()?;
            assert!(each.iter().any(|sum| *sum > 0.));
        }
    }
    let wrong = Tensor::new(&[4u32, 7, 2], &Device::Cpu)?;
    let result = nn::attention::flash_attn_varlen_unfused(
        &q, &k, &v, None, &queries, &wrong, 5, 7, 0.4, false, None, None,
    );
    assert!(result.is_err());
    Ok(())
}
