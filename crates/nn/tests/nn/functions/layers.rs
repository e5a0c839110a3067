//! Layers with parameters.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Result, Tensor};
use candle_headroom_nn::quantized::{FrozenLinear, Nf4, QMatMul};
use candle_headroom_nn::rnn::{GRUConfig, LSTMConfig};
use candle_headroom_nn::{
    self as nn, BatchNorm, Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, ConvTranspose1d,
    ConvTranspose1dConfig, ConvTranspose2dConfig, Embedding, GroupNorm, Linear, Module, ModuleT,
    RNN, ops,
};

use super::case::{Argument, Argument::*, Case, Kind, vb};
use crate::check::numbers;

const STATISTICS: &str = "the statistics are those of the batch";

/// A sample of `dims`, and parameters.
fn with(
    sample: fn(usize) -> Vec<usize>,
    parameters: &'static [&'static [usize]],
) -> impl Fn(usize) -> Vec<Argument> {
    move |length| {
        let parameters = parameters.iter().map(|dims| Shared(dims.to_vec()));
        [Sample(sample(length))]
            .into_iter()
            .chain(parameters)
            .collect()
    }
}

fn linear() -> Vec<Case> {
    let both: &'static [&'static [usize]] = &[&[6, 4], &[6]];
    let layer =
        |x: &[Tensor]| nn::linear(4, 6, vb(&[("weight", &x[1]), ("bias", &x[2])]))?.forward(&x[0]);
    vec![
        Case::new(
            "linear, Linear",
            "(batch, in)",
            Kind::Sums,
            with(|_| vec![4], both),
            layer,
        ),
        Case::new(
            "linear, Linear",
            "rows",
            Kind::Sums,
            with(|length| vec![length, 4], both),
            layer,
        ),
        Case::new(
            "Linear",
            "heads",
            Kind::Sums,
            with(|length| vec![2, length, 4], both),
            |x| Linear::new(x[1].clone(), Some(x[2].clone())).forward(&x[0]),
        ),
        Case::new(
            "linear_b",
            "",
            Kind::Sums,
            with(|length| vec![length, 4], both),
            |x| nn::linear_b(4, 6, true, vb(&[("weight", &x[1]), ("bias", &x[2])]))?.forward(&x[0]),
        ),
        Case::new(
            "linear_no_bias",
            "",
            Kind::Sums,
            with(|length| vec![length, 4], &[&[6, 4]]),
            |x| nn::linear_no_bias(4, 6, vb(&[("weight", &x[1])]))?.forward(&x[0]),
        ),
    ]
}

fn embeddings() -> Vec<Case> {
    let arguments = |length| vec![Numbers(vec![length], 9), Shared(vec![9, 4])];
    vec![
        Case::new("embedding, Embedding", "", Kind::Rows, arguments, |x| {
            nn::embedding(9, 4, vb(&[("weight", &x[1])]))?.forward(&x[0])
        }),
        Case::new(
            "Embedding",
            "a number",
            Kind::Rows,
            |_| vec![Numbers(vec![], 9), Shared(vec![9, 4])],
            |x| Embedding::new(x[1].clone(), 4).forward(&x[0]),
        ),
    ]
}

fn convolutions() -> Vec<Case> {
    let line = |length| vec![4, length + 4];
    let plane = |length: usize| vec![4, length + 3, 5];
    let wide = Conv1dConfig {
        padding: 2,
        stride: 2,
        dilation: 2,
        groups: 2,
        ..Default::default()
    };
    let transposed = ConvTranspose1dConfig {
        padding: 1,
        output_padding: 1,
        stride: 2,
        dilation: 1,
        groups: 2,
    };
    let wide_plane = Conv2dConfig {
        padding: 1,
        stride: 2,
        dilation: 1,
        groups: 2,
        ..Default::default()
    };
    let transposed_plane = ConvTranspose2dConfig {
        padding: 1,
        output_padding: 1,
        stride: 2,
        dilation: 1,
    };
    vec![
        Case::new(
            "conv1d, Conv1d",
            "",
            Kind::Sums,
            with(line, &[&[6, 4, 3], &[6]]),
            |x| {
                let vb = vb(&[("weight", &x[1]), ("bias", &x[2])]);
                nn::conv1d(4, 6, 3, Conv1dConfig::default(), vb)?.forward(&x[0])
            },
        ),
        Case::new(
            "Conv1d",
            "groups",
            Kind::Sums,
            with(line, &[&[6, 2, 3], &[6]]),
            move |x| Conv1d::new(x[1].clone(), Some(x[2].clone()), wide).forward(&x[0]),
        ),
        Case::new(
            "conv1d_no_bias",
            "",
            Kind::Sums,
            with(line, &[&[6, 4, 3]]),
            |x| {
                nn::conv1d_no_bias(4, 6, 3, Conv1dConfig::default(), vb(&[("weight", &x[1])]))?
                    .forward(&x[0])
            },
        ),
        Case::new(
            "conv_transpose1d, ConvTranspose1d",
            "",
            Kind::Sums,
            with(line, &[&[4, 6, 3], &[6]]),
            |x| {
                let vb = vb(&[("weight", &x[1]), ("bias", &x[2])]);
                nn::conv_transpose1d(4, 6, 3, ConvTranspose1dConfig::default(), vb)?.forward(&x[0])
            },
        ),
        Case::new(
            "ConvTranspose1d",
            "groups",
            Kind::Sums,
            with(line, &[&[4, 3, 3], &[6]]),
            move |x| {
                ConvTranspose1d::new(x[1].clone(), Some(x[2].clone()), transposed).forward(&x[0])
            },
        ),
        Case::new(
            "conv_transpose1d_no_bias",
            "",
            Kind::Sums,
            with(line, &[&[4, 6, 3]]),
            |x| {
                let config = ConvTranspose1dConfig::default();
                nn::conv_transpose1d_no_bias(4, 6, 3, config, vb(&[("weight", &x[1])]))?
                    .forward(&x[0])
            },
        ),
        Case::new(
            "conv2d, Conv2d",
            "",
            Kind::Sums,
            with(plane, &[&[6, 4, 3, 3], &[6]]),
            |x| {
                let vb = vb(&[("weight", &x[1]), ("bias", &x[2])]);
                nn::conv2d(4, 6, 3, Conv2dConfig::default(), vb)?.forward(&x[0])
            },
        ),
        Case::new(
            "Conv2d",
            "groups",
            Kind::Sums,
            with(plane, &[&[6, 2, 3, 3], &[6]]),
            move |x| Conv2d::new(x[1].clone(), Some(x[2].clone()), wide_plane).forward(&x[0]),
        ),
        Case::new(
            "conv2d_no_bias",
            "",
            Kind::Sums,
            with(plane, &[&[6, 4, 3, 3]]),
            |x| {
                nn::conv2d_no_bias(4, 6, 3, Conv2dConfig::default(), vb(&[("weight", &x[1])]))?
                    .forward(&x[0])
            },
        ),
        Case::new(
            "conv_transpose2d, ConvTranspose2d",
            "",
            Kind::Sums,
            with(plane, &[&[4, 6, 3, 3], &[6]]),
            move |x| {
                let vb = vb(&[("weight", &x[1]), ("bias", &x[2])]);
                nn::conv_transpose2d(4, 6, 3, transposed_plane, vb)?.forward(&x[0])
            },
        ),
        Case::new(
            "conv_transpose2d_no_bias",
            "",
            Kind::Sums,
            with(plane, &[&[4, 6, 3, 3]]),
            |x| {
                let config = ConvTranspose2dConfig::default();
                nn::conv_transpose2d_no_bias(4, 6, 3, config, vb(&[("weight", &x[1])]))?
                    .forward(&x[0])
            },
        ),
    ]
}

fn batch_norm(x: &[Tensor], train: bool) -> Result<Tensor> {
    let wide = match x[1].dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let running = |seed| {
        numbers(&[4], seed)
            .abs()?
            .to_dtype(wide)?
            .to_device(x[0].device())
    };
    let (mean, variance) = (running(5)?, running(6)?);
    let (weight, bias) = (x[1].clone(), x[2].clone());
    BatchNorm::new(4, mean, variance, weight, bias, 1e-3)?.forward_t(&x[0], train)
}

fn norms() -> Vec<Case> {
    let channels = |length| vec![4, length + 2];
    let both: &'static [&'static [usize]] = &[&[4], &[4]];
    vec![
        Case::new(
            "group_norm, GroupNorm",
            "",
            Kind::Rows,
            with(channels, both),
            |x| {
                nn::group_norm(2, 4, 1e-3, vb(&[("weight", &x[1]), ("bias", &x[2])]))?
                    .forward(&x[0])
            },
        ),
        Case::new(
            "GroupNorm",
            "a plane",
            Kind::Rows,
            with(|length| vec![4, length, 3], both),
            |x| GroupNorm::new(x[1].clone(), x[2].clone(), 4, 4, 1e-3)?.forward(&x[0]),
        ),
        Case::new(
            "batch_norm, BatchNorm",
            "evaluation",
            Kind::Rows,
            with(channels, both),
            |x| batch_norm(x, false),
        ),
        Case::new(
            "BatchNorm",
            "training",
            Kind::Batch(STATISTICS),
            with(channels, both),
            |x| batch_norm(x, true),
        ),
    ]
}

fn others() -> Vec<Case> {
    let plane = |length| vec![4, length + 1, 4];
    let even = |length: usize| vec![2, 2 * length, 4];
    let recurrent: &'static [&'static [usize]] = &[&[12, 3], &[12, 3], &[12], &[12]];
    let gated: &'static [&'static [usize]] = &[&[9, 3], &[9, 3], &[9], &[9]];
    let names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];
    let named = move |x: &[Tensor]| {
        let tensors: Vec<_> = names.into_iter().zip(&x[1..]).collect();
        vb(&tensors)
    };
    vec![
        Case::new(
            "ops::pixel_shuffle",
            "",
            Kind::Rows,
            with(plane, &[]),
            |x| ops::pixel_shuffle(&x[0], 2),
        ),
        Case::new(
            "ops::pixel_unshuffle",
            "",
            Kind::Rows,
            with(even, &[]),
            |x| ops::pixel_unshuffle(&x[0], 2),
        ),
        Case::new(
            "ops::replication_pad2d",
            "",
            Kind::Rows,
            with(plane, &[]),
            |x| ops::replication_pad2d(&x[0], 1),
        ),
        Case::new(
            "lstm, LSTM",
            "",
            Kind::Sums,
            with(|length| vec![length, 3], recurrent),
            move |x| {
                let lstm = nn::lstm(3, 3, LSTMConfig::default(), named(x))?;
                lstm.states_to_tensor(&lstm.seq(&x[0])?)
            },
        ),
        Case::new(
            "gru, GRU",
            "",
            Kind::Sums,
            with(|length| vec![length, 3], gated),
            move |x| {
                let gru = nn::gru(3, 3, GRUConfig::default(), named(x))?;
                gru.states_to_tensor(&gru.seq(&x[0])?)
            },
        ),
        Case::new(
            "quantized::QMatMul",
            "Q8_0",
            Kind::Sums,
            with(|length| vec![length, 64], &[]),
            |x| {
                let weight = QTensor::quantize(
                    &numbers(&[6, 64], 5).to_dtype(DType::F32)?,
                    GgmlDType::Q8_0,
                )?;
                QMatMul::from_qtensor(weight)?.forward(&x[0])
            },
        )
        .only(&[DType::F32, DType::F16, DType::BF16])
        .without_differences("candle rounds the input to 8 bits")
        .without_sums("it has no parameters that are trained")
        .on_the_cpu(),
        Case::new(
            "quantized::QMatMul",
            "Q4K",
            Kind::Sums,
            with(|length| vec![length, 256], &[]),
            |x| {
                let weight = QTensor::quantize(
                    &numbers(&[6, 256], 5).to_dtype(DType::F32)?,
                    GgmlDType::Q4K,
                )?;
                QMatMul::from_qtensor(weight)?.forward(&x[0])
            },
        )
        .only(&[DType::F32, DType::F16, DType::BF16])
        .without_differences("candle rounds the input to 8 bits")
        .without_sums("it has no parameters that are trained")
        .on_the_cpu(),
        Case::new(
            "quantized::FrozenLinear, quantized::FrozenWeight, quantized::Nf4",
            "",
            Kind::Sums,
            with(|length| vec![length, 40], &[&[6]]),
            |x| {
                let weight = Nf4::quantize(&numbers(&[6, 40], 5), x[0].device())?;
                FrozenLinear::new(weight, Some(x[1].clone()))?.forward(&x[0])
            },
        ),
    ]
}

pub fn cases() -> Vec<Case> {
    let groups = [linear(), embeddings(), convolutions(), norms(), others()];
    groups.into_iter().flatten().collect()
}
