use candle_core::{Result, Tensor};

use crate::nn::graph::record;

/// Returns `kept` with `new` written to it along `dim` from index `at` on, which is at most its length; where `new` passes index
/// `end`, it goes on at index 0. `new` is shorter than `end`.
///
/// The gradient arrives at `new`; `kept` is a constant. The graph keeps `new`. If one of them is empty, the other comes back.
pub fn overwrite(kept: &Tensor, new: &Tensor, dim: usize, at: usize, end: usize) -> Result<Tensor> {
    let (have, count) = (kept.dim(dim)?, new.dim(dim)?);
    if have == 0 {
        return Ok(new.clone());
    }
    let kept = kept.detach();
    if count == 0 {
        return Ok(kept);
    }
    let before_end = count.min(end - at);
    let from_start = count - before_end;
    let behind = (at + before_end).min(have);
    let constant = new.detach();
    let mut parts = vec![
        constant.narrow(dim, before_end, from_start)?,
        kept.narrow(dim, from_start, at - from_start)?,
        constant.narrow(dim, 0, before_end)?,
        kept.narrow(dim, behind, have - behind)?,
    ];
    parts.retain(|part| part.dims().get(dim) != Some(&0));
    let all = Tensor::cat(&parts, dim)?;
    record("kv-cache", [new], all, move |given| {
        let first = given.gradient.narrow(dim, at, before_end)?;
        let gradient = match from_start {
            0 => first,
            _ => Tensor::cat(&[first, given.gradient.narrow(dim, 0, from_start)?], dim)?,
        };
        Ok([Some(gradient)])
    })
}
