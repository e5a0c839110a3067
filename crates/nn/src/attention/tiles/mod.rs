//! Attention on the CPU: tiles of scores that stay in a core's cache, and all threads.

mod backward;
mod forward;
mod rows;
mod view;

use candle_core::{Result, Tensor};

use super::rule::Rule;
use crate::kernel::matrix::Number;
use rows::with_bias;
use view::with_views;

/// The output as (batch, queries, heads, value width), and the statistics as (batch, heads, queries, 2).
pub fn forward<T: Number>(rule: &Rule, inputs: [&Tensor; 3]) -> Result<(Tensor, Tensor)> {
    let (output, statistics) = with_bias(rule, |bias| {
        with_views(inputs, |[q, k, v]| {
            let forward = forward::Forward::<T> {
                rule,
                q,
                k,
                v,
                bias,
            };
            forward.run()
        })
    })?;
    Ok((output, statistics.transpose(1, 2)?))
}

/// The gradients of q, k and v; none of the mask. Given q, k, v, the output and its gradient, all as (batch, heads, …).
pub fn backward<T: Number>(
    rule: &Rule,
    [q, k, v, output, gradient]: [&Tensor; 5],
    statistics: &Tensor,
) -> Result<[Option<Tensor>; 4]> {
    let dense = |tensor: &Tensor| match tensor.stride().last() {
        Some(1) => Ok(tensor.clone()),
        _ => tensor.contiguous(),
    };
    let (output, gradient) = (dense(output)?, dense(gradient)?);
    let [dq, dk, dv] = with_bias(rule, |bias| {
        let all = [q, k, v, &output, &gradient, statistics];
        with_views(all, |[q, k, v, output, gradient, statistics]| {
            let backward = backward::Backward::<T> {
                rule,
                q,
                k,
                v,
                output,
                gradient,
                statistics,
                bias,
            };
            backward.run()
        })
    })?;
    Ok([Some(dq), Some(dk), Some(dv), None])
}
