//! Softmax, norms and rotations of rows.

use candle_core::{D, Result, Tensor};
use candle_headroom_nn::{
    self as nn, LayerNorm, LayerNormConfig, Module, RmsNorm, ops, rotary_emb,
};

use super::case::{Argument, Argument::*, Case, Kind, vb};

const EPS: f32 = 1e-3;

/// Rows, and as many parameters as asked for.
fn with_parameters(count: usize) -> impl Fn(usize) -> Vec<Argument> {
    move |length| {
        let parameters = (0..count).map(|_| Shared(vec![7]));
        [Sample(vec![length, 7])]
            .into_iter()
            .chain(parameters)
            .collect()
    }
}

/// What is rotated, of `dims` for a length, and tables of as many positions.
fn with_angles(dims: fn(usize) -> Vec<usize>) -> impl Fn(usize) -> Vec<Argument> {
    move |length| {
        vec![
            Sample(dims(length)),
            Shared(vec![length, 3]),
            Shared(vec![length, 3]),
        ]
    }
}

type Rotation = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Of which both have other gradients.
fn sum_of((q, k): (Tensor, Tensor)) -> Result<Tensor> {
    q + (k * 2.)?
}

fn rotation(name: &'static str, dims: fn(usize) -> Vec<usize>, rotate: Rotation) -> Case {
    let run = move |x: &[Tensor]| rotate(&x[0], &x[1], &x[2]);
    Case::new(name, "", Kind::Rows, with_angles(dims), run)
}

pub fn cases() -> Vec<Case> {
    let norm = |covers, what, count, run: fn(&[Tensor]) -> Result<Tensor>| {
        Case::new(covers, what, Kind::Rows, with_parameters(count), run)
    };
    let heads_first = |length| vec![2, length, 6];
    let time_first = |length| vec![length, 2, 6];
    vec![
        Case::of_rows("ops::softmax", "the last dimension", 7, |x| {
            ops::softmax(x, D::Minus1)
        }),
        Case::of_rows("ops::softmax", "another dimension", 7, |x| {
            ops::softmax(x, 1)
        }),
        Case::of_rows("ops::softmax_last_dim", "", 7, ops::softmax_last_dim),
        Case::of_rows("ops::log_softmax", "the last dimension", 7, |x| {
            ops::log_softmax(x, D::Minus1)
        }),
        Case::of_rows("ops::log_softmax", "another dimension", 7, |x| {
            ops::log_softmax(x, 1)
        }),
        norm("ops::rms_norm", "", 1, |x| ops::rms_norm(&x[0], &x[1], EPS)),
        norm("ops::rms_norm_slow", "", 1, |x| {
            ops::rms_norm_slow(&x[0], &x[1], EPS)
        }),
        norm("ops::layer_norm", "", 2, |x| {
            ops::layer_norm(&x[0], &x[1], &x[2], EPS)
        }),
        norm("ops::layer_norm", "a large mean", 2, |x| {
            ops::layer_norm(&(&x[0] + 1e3)?, &x[1], &x[2], EPS)
        })
        .without_sums("f16 and bf16 round the mean"),
        norm("ops::layer_norm_slow", "", 2, |x| {
            ops::layer_norm_slow(&x[0], &x[1], &x[2], EPS)
        }),
        norm("layer_norm, LayerNorm", "", 2, |x| {
            nn::layer_norm(7, 1e-3, vb(&[("weight", &x[1]), ("bias", &x[2])]))?.forward(&x[0])
        }),
        norm("layer_norm, LayerNorm", "without the mean", 2, |x| {
            let config = LayerNormConfig {
                eps: 1e-3,
                remove_mean: false,
                affine: true,
            };
            nn::layer_norm(7, config, vb(&[("weight", &x[1]), ("bias", &x[2])]))?.forward(&x[0])
        }),
        norm("layer_norm_no_bias", "", 1, |x| {
            nn::layer_norm_no_bias(7, 1e-3, vb(&[("weight", &x[1])]))?.forward(&x[0])
        }),
        norm("LayerNorm", "of rms_norm", 1, |x| {
            LayerNorm::rms_norm(x[1].clone(), 1e-3).forward(&x[0])
        }),
        norm("rms_norm, RmsNorm", "", 1, |x| {
            nn::rms_norm(7, 1e-3, vb(&[("weight", &x[1])]))?.forward(&x[0])
        }),
        norm("RmsNorm", "forward_diff", 1, |x| {
            RmsNorm::new(x[1].clone(), 1e-3).forward_diff(&x[0])
        }),
        norm("LayerNorm", "forward_residual", 2, |x| {
            let norm = LayerNorm::new(x[1].clone(), x[2].clone(), 1e-3);
            sum_of(norm.forward_residual(&x[0], &x[0])?)
        }),
        norm("RmsNorm", "forward_residual", 1, |x| {
            sum_of(RmsNorm::new(x[1].clone(), 1e-3).forward_residual(&x[0], &x[0])?)
        }),
        rotation("rotary_emb::rope", heads_first, rotary_emb::rope),
        rotation("rotary_emb::rope_i", heads_first, rotary_emb::rope_i),
        rotation("rotary_emb::rope_thd", time_first, rotary_emb::rope_thd),
        rotation("rotary_emb::rope_both", heads_first, |x, cos, sin| {
            sum_of(rotary_emb::rope_both(x, x, cos, sin)?)
        }),
        rotation("rotary_emb::rope_i_both", heads_first, |x, cos, sin| {
            sum_of(rotary_emb::rope_i_both(x, x, cos, sin)?)
        }),
        rotation("rotary_emb::rope_thd_both", time_first, |x, cos, sin| {
            sum_of(rotary_emb::rope_thd_both(x, x, cos, sin)?)
        }),
        rotation("rotary_emb::rope_slow", heads_first, rotary_emb::rope_slow),
        rotation(
            "rotary_emb::rope_i_slow",
            heads_first,
            rotary_emb::rope_i_slow,
        ),
        Case::new(
            "rotary_emb::rope",
            "angles for each sample",
            Kind::Rows,
            |length| {
                vec![
                    Sample(vec![2, length, 6]),
                    Sample(vec![length, 3]),
                    Sample(vec![length, 3]),
                ]
            },
            |x| rotary_emb::rope(&x[0], &x[1], &x[2]),
        ),
    ]
}
