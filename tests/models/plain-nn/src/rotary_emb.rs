//! `candle_nn::rotary_emb`, differentiable.

use candle_core::{Result, Tensor};
pub use candle_nn::rotary_emb::*;

pub fn rope(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (cos, sin) = (over_heads(cos)?, over_heads(sin)?);
    let sequence = xs.dim(2)?;
    let half = xs.dim(3)? / 2;
    let (a, b) = (xs.narrow(3, 0, half)?, xs.narrow(3, half, half)?);
    let (cos, sin) = (
        cos.narrow(cos.rank() - 2, 0, sequence)?,
        sin.narrow(sin.rank() - 2, 0, sequence)?,
    );
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
    Tensor::cat(&[first, second], 3)
}

pub fn rope_i(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (cos, sin) = (over_heads(cos)?, over_heads(sin)?);
    let (batch, heads, sequence, dim) = xs.dims4()?;
    let (cos, sin) = (
        cos.narrow(cos.rank() - 2, 0, sequence)?,
        sin.narrow(sin.rank() - 2, 0, sequence)?,
    );
    let pairs = xs.reshape((batch, heads, sequence, dim / 2, 2))?;
    let (a, b) = (
        pairs.narrow(4, 0, 1)?.squeeze(4)?,
        pairs.narrow(4, 1, 1)?.squeeze(4)?,
    );
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
    Tensor::stack(&[first, second], 4)?.reshape((batch, heads, sequence, dim))
}

/// [`rope`] on (batch, sequence, heads, dim).
pub fn rope_thd(xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rope(&xs.transpose(1, 2)?, cos, sin)?
        .transpose(1, 2)?
        .contiguous()
}

/// Angles for each sample, (batch, sequence, dim / 2), apply to every head.
fn over_heads(angles: &Tensor) -> Result<Tensor> {
    if angles.rank() == 3 {
        angles.unsqueeze(1)
    } else {
        Ok(angles.clone())
    }
}
