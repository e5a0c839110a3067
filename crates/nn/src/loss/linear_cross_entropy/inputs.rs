use candle_core::{Error, Result, Tensor, bail};

use super::options::LinearCrossEntropy;
use super::pass::Pass;
use super::tokens::Tokens;
use crate::kernel::sum_type;

pub const NAME: &str = "linear_cross_entropy";

/// Tensors whose shapes, types and devices fit.
pub struct Inputs<'a> {
    pub hidden: &'a Tensor,
    pub weight: &'a Tensor,
    pub bias: Option<&'a Tensor>,
}

impl<'a> Inputs<'a> {
    pub fn new(
        hidden: &'a Tensor,
        weight: &'a Tensor,
        options: &'a LinearCrossEntropy,
    ) -> Result<Self> {
        let classes = match (weight.dims(), hidden.dims().last()) {
            (&[classes, width], Some(last)) if classes > 0 && width > 0 && width == *last => {
                classes
            }
            _ => bail!(
                "{NAME}: hidden of shape {:?} needs a weight (classes, width), got {:?}",
                hidden.shape(),
                weight.shape()
            ),
        };
        let bias = options.bias.as_ref();
        if let Some(bias) = bias.filter(|bias| bias.dims() != [classes]) {
            bail!(
                "{NAME}: a weight of shape {:?} needs a bias (classes), got {:?}",
                weight.shape(),
                bias.shape()
            )
        }
        if !hidden.dtype().is_float() {
            return Err(Error::UnsupportedDTypeForOp(hidden.dtype(), NAME).bt());
        }
        for other in [Some(weight), bias].into_iter().flatten() {
            alike(hidden, other)?;
        }
        Ok(Self {
            hidden,
            weight,
            bias,
        })
    }

    /// Checks targets and options.
    pub fn pass(&self, targets: &Tensor, options: &LinearCrossEntropy) -> Result<Pass> {
        let (hidden, rule) = (self.hidden, options.rule()?);
        let tokens = hidden.dims().split_last().map(|(_, tokens)| tokens);
        if tokens != Some(targets.dims()) {
            bail!(
                "{NAME}: hidden of shape {:?} needs targets of its shape without the width, got {:?}",
                hidden.shape(),
                targets.shape()
            )
        }
        let kind = (sum_type(hidden.dtype()), hidden.device());
        Ok(Pass {
            rule,
            tokens: Tokens::new(targets, options, self.weight.dim(0)?, kind)?,
            chunk_rows: options.chunk_rows,
        })
    }
}

fn alike(hidden: &Tensor, other: &Tensor) -> Result<()> {
    if hidden.dtype() != other.dtype() {
        let (lhs, rhs, op) = (hidden.dtype(), other.dtype(), NAME);
        return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt());
    }
    if !hidden.device().same_device(other.device()) {
        let (lhs, rhs) = (hidden.device().location(), other.device().location());
        return Err(Error::DeviceMismatchBinaryOp { lhs, rhs, op: NAME }.bt());
    }
    Ok(())
}
