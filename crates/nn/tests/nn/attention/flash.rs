use candle_core::{DType, Result, Tensor};
use candle_headroom_nn as nn;
use candle_headroom_nn::attention::AttnMask;

use super::{Plain, coarse, inputs};
use crate::check::{FLOATS, agrees_from_output as agrees, difference, numbers, same_bits};

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
    for (sizes, offset) in [
        ([1, 4, 2, 1, 9, 8, 8], 0),
        ([3, 4, 2, 5, 9, 8, 8], 4),
        ([2, 4, 2, 5, 5, 8, 8], 0),
    ] {
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

/// candle leaves `max_bias` out without a mask, for a batch of one only.
#[test]
fn alibi_without_a_mask_counts_for_every_batch_size() -> Result<()> {
    let [q, k, v] = positions([2, 4, 2, 5, 9, 8, 8])?;
    let theirs =
        candle_nn::attention::flash_attn::<f32>(&q, &k, &v, 0.4, AttnMask::None, Some(8.), None)?;
    for sample in 0..2 {
        let of = |x: &Tensor| x.narrow(0, sample, 1);
        let (q, k, v) = (of(&q)?, of(&k)?, of(&v)?);
        let ours =
            nn::attention::flash_attn::<f32>(&q, &k, &v, 0.4, AttnMask::None, Some(8.), None)?;
        close(&ours, &of(&theirs)?)?;
    }
    Ok(())
}

/// Where candle aligns several samples without an offset by their last key, and a single one by its first.
#[test]
fn an_offset_means_the_same_for_every_batch_size() -> Result<()> {
    for (queries, keys, offset) in [(3, 5, 0), (3, 5, 1), (5, 5, 0), (1, 5, 0)] {
        let [q, k, v] = positions([3, 4, 2, queries, keys, 8, 8])?;
        let run = |q: &Tensor, k: &Tensor, v: &Tensor| {
            let mask = AttnMask::causal_with_offset(offset);
            nn::attention::flash_attn::<f32>(q, k, v, 0.4, mask, None, None)
        };
        let all = run(&q, &k, &v)?;
        for sample in 0..3 {
            let of = |x: &Tensor| x.narrow(0, sample, 1);
            let (q, k, v) = (of(&q)?, of(&k)?, of(&v)?);
            same_bits(&of(&all)?, &run(&q, &k, &v)?)?;
            let mask = AttnMask::causal_with_offset(offset);
            let candles =
                candle_nn::attention::flash_attn::<f32>(&q, &k, &v, 0.4, mask, None, None)?;
            close(&of(&all)?, &candles)?;
        }
    }
    Ok(())
}

/// candle returns f32 for a single sample of f16 or bf16.
#[test]
fn every_batch_size_gives_the_type_of_the_queries() -> Result<()> {
    for dtype in FLOATS {
        for max_bias in [None, Some(8.)] {
            for batch in [1, 2] {
                let [q, k, v] = positions([batch, 2, 2, 3, 4, 4, 4])?.map(|x| x.to_dtype(dtype));
                let (q, k, v) = (q?, k?, v?);
                let mask = AttnMask::causal();
                let y = nn::attention::flash_attn::<f32>(&q, &k, &v, 0.4, mask, max_bias, None)?;
                assert_eq!(y.dtype(), dtype);
            }
        }
    }
    Ok(())
}

/// The modules of candle's former names.
#[test]
fn former_names_have_gradients() -> Result<()> {
    let mask = coarse(&[3, 5], 4)?;
    let inputs = [
        numbers(&[2, 3, 4, 6], 1),
        numbers(&[2, 5, 2, 6], 2),
        numbers(&[2, 5, 2, 6], 3),
    ];
    agrees(
        &|x| {
            let mask = mask.to_dtype(x[0].dtype())?;
            let (mask, cap) = (Some(&mask), Some(1.5));
            #[allow(deprecated)]
            nn::cpu_flash_attention::run_flash_attn_cpu::<f32>(
                &x[0], &x[1], &x[2], mask, 0.5, None, cap,
            )
        },
        &|x| {
            let heads = |x: &Tensor| x.transpose(1, 2)?.contiguous();
            let plain = Plain {
                mask: Some(mask.clone()),
                scale: Some(0.5),
                softcap: Some(1.5),
                ..Plain::default()
            };
            plain.run(&heads(&x[0])?, &heads(&x[1])?, &heads(&x[2])?)
        },
        &inputs,
    )
}
