//! The bias of each channel, as a part of a convolution.

use candle_core::{DType, Result, Tensor, bail};

use crate::graph::{Backward, Gradients, record};

/// Adds the bias of each channel and puts the sum into the graph, which keeps it and not `y`. `gradients` maps input, weight, the
/// output's gradient, and which of the two are asked for, to those of input and weight.
pub fn record_with_bias(
    name: &'static str,
    [x, weight]: [&Tensor; 2],
    bias: Option<&Tensor>,
    y: Tensor,
    gradients: impl Fn(&Tensor, &Tensor, &Tensor, [bool; 2]) -> Result<Gradients<2>>
    + Send
    + Sync
    + 'static,
) -> Result<Tensor> {
    let Some(bias) = bias else {
        return record(name, [x, weight], y, move |given: Backward<2>| {
            let [x, weight] = &given.inputs;
            gradients(x, weight, &given.gradient, given.needs)
        });
    };
    if bias.dims() != [y.dim(1)?] {
        bail!(
            "{name}: the bias {:?} is not that of the channels of {:?}",
            bias.shape(),
            y.shape()
        )
    }
    let of_channels: Vec<_> = (0..y.rank())
        .map(|dim| if dim == 1 { bias.elem_count() } else { 1 })
        .collect();
    let sum = y.broadcast_add(&bias.detach().reshape(of_channels)?)?;
    drop(y);
    record(name, [x, weight, bias], sum, move |given: Backward<3>| {
        let ([x, weight, bias], [needs_x, needs_weight, needs_bias]) = (&given.inputs, given.needs);
        let [dx, dweight] = gradients(x, weight, &given.gradient, [needs_x, needs_weight])?;
        let dbias = needs_bias.then(|| {
            let others: Vec<_> = (0..given.gradient.rank()).filter(|&dim| dim != 1).collect();
            given
                .gradient
                .to_dtype(widened(bias.dtype()))?
                .sum(others)?
                .to_dtype(bias.dtype())
        });
        Ok([dx, dweight, dbias.transpose()?])
    })
}

/// The type that sums are computed in.
pub fn widened(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}
