//! Attention, and what is made of it.

use candle_core::{Result, Tensor};
use candle_headroom_nn::attention::cpu_flash::{causal, standard};
use candle_headroom_nn::attention::{AttnMask, flash_attn, flash_attn_varlen_unfused};
use candle_headroom_nn::{Attention, attention, ops, seeded};

use super::case::{Argument, Argument::*, Case, Kind};

/// (heads, positions, width) of queries, keys and values; two query heads share a key head, and there are two keys more than queries.
fn heads_first(length: usize) -> Vec<Argument> {
    let of = |heads, positions| Sample(vec![heads, positions, 4]);
    vec![of(4, length), of(2, length + 2), of(2, length + 2)]
}

/// (positions, heads, width)
fn time_first(length: usize) -> Vec<Argument> {
    let of = |positions, heads| Sample(vec![positions, heads, 4]);
    vec![of(length, 4), of(length + 2, 2), of(length + 2, 2)]
}

fn with_mask(length: usize) -> Vec<Argument> {
    let mut arguments = heads_first(length);
    arguments.push(Shared(vec![length, length + 2]));
    arguments
}

fn options(what: &str, options: Attention) -> Case {
    Case::new(
        "attention, Attention, attention::attention, attention::Attention",
        what,
        Kind::Rows,
        heads_first,
        move |x| attention(&x[0], &x[1], &x[2], &options),
    )
}

/// The result of `flash_attn` with samples first.
fn flash(what: &str, mask: fn() -> AttnMask, max_bias: Option<f32>, cap: Option<f32>) -> Case {
    let covers = "attention::flash_attn, attention::cpu_flash::flash_attn";
    Case::new(covers, what, Kind::Rows, time_first, move |x| {
        flash_attn::<f32>(&x[0], &x[1], &x[2], 0.5, mask(), max_bias, cap)
    })
}

/// Sequences that lie one after the other.
fn packed(x: &[Tensor], is_causal: bool, window: [Option<usize>; 2]) -> Result<Tensor> {
    let lengths = |x: &Tensor| Tensor::full(x.dim(1)? as u32, x.dim(0)?, x.device());
    let (queries, keys) = (lengths(&x[0])?, lengths(&x[1])?);
    let flat = |x: &Tensor| x.flatten(0, 1);
    let ys = flash_attn_varlen_unfused(
        &flat(&x[0])?,
        &flat(&x[1])?,
        &flat(&x[2])?,
        None,
        &queries,
        &keys,
        x[0].dim(1)?,
        x[1].dim(1)?,
        0.5,
        is_causal,
        window[0],
        window[1],
    )?;
    ys.reshape(x[0].shape())
}

pub fn cases() -> Vec<Case> {
    let whole = Attention::default;
    let dropped = whole().dropout(0.3);
    const VARLEN: &str = "attention::flash_attn_varlen_unfused, attention::flash_attn_varlen_cpu, \
                          attention::cpu_flash::varlen::flash_attn_varlen_cpu, \
                          attention::varlen::flash_attn_varlen_unfused";
    vec![
        options("of all keys", whole()),
        options("causal", whole().causal()),
        options("causal from an offset", whole().causal_from(1)),
        options("a window", whole().window(1, 1)),
        options("soft capping and a scale", whole().softcap(1.5).scale(0.7)),
        Case::new("Attention", "a mask", Kind::Rows, with_mask, |x| {
            attention(
                &x[0],
                &x[1],
                &x[2],
                &Attention::default().mask(&x[3].detach()),
            )
        })
        .without_differences("the mask is a constant"),
        Case::new("Attention", "a learned mask", Kind::Sums, with_mask, |x| {
            attention(&x[0], &x[1], &x[2], &Attention::default().mask(&x[3]))
        }),
        Case::new(
            "Attention",
            "dropout",
            Kind::Batch("the weights that are dropped depend on the position in the batch"),
            heads_first,
            move |x| seeded(5, || attention(&x[0], &x[1], &x[2], &dropped)),
        ),
        Case::new("ops::sdpa", "", Kind::Rows, heads_first, |x| {
            ops::sdpa(&x[0], &x[1], &x[2], None, true, 0.5, 2.)
        }),
        flash("of all keys", || AttnMask::None, None, None),
        flash("causal", AttnMask::causal, None, None),
        flash(
            "causal from an offset",
            || AttnMask::causal_with_offset(2),
            None,
            Some(1.5),
        ),
        flash("a bias of distances", AttnMask::causal, Some(8.), None),
        Case::new(
            "attention::cpu_flash::causal::run_causal_attn_cpu",
            "",
            Kind::Rows,
            time_first,
            |x| causal::run_causal_attn_cpu::<f32>(&x[0], &x[1], &x[2], 0.5, 1, None, None),
        ),
        Case::new(
            "attention::cpu_flash::standard::run_flash_attn_cpu",
            "",
            Kind::Rows,
            time_first,
            |x| standard::run_flash_attn_cpu::<f32>(&x[0], &x[1], &x[2], None, 0.5, None, Some(2.)),
        ),
        Case::new(
            "cpu_flash_attention::run_flash_attn_cpu",
            "",
            Kind::Rows,
            time_first,
            |x| {
                #[allow(deprecated)]
                let run = candle_headroom_nn::cpu_flash_attention::run_flash_attn_cpu::<f32>;
                run(&x[0], &x[1], &x[2], None, 0.5, None, None)
            },
        ),
        Case::new(VARLEN, "", Kind::Rows, time_first, |x| {
            packed(x, true, [None, None])
        }),
        Case::new(VARLEN, "a window", Kind::Rows, time_first, |x| {
            packed(x, false, [Some(1), Some(1)])
        }),
    ]
}
