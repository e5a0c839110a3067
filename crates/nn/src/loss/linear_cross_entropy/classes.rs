use candle_core::{Device, Result, Shape, Tensor, Var};

use crate::quantized::FrozenWeight;

/// The weight (classes, width) of the linear layer before the loss.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Classes<'a> {
    /// One that may be trained.
    Tensor(&'a Tensor),
    /// A frozen one, of which the rows of some classes are dequantized at a time, to the type of the hidden states; on the CPU to f32.
    Frozen(&'a FrozenWeight),
}

impl<'a> From<&'a Tensor> for Classes<'a> {
    fn from(weight: &'a Tensor) -> Self {
        Self::Tensor(weight)
    }
}

impl<'a> From<&'a Var> for Classes<'a> {
    fn from(weight: &'a Var) -> Self {
        Self::Tensor(weight)
    }
}

impl<'a> From<&'a FrozenWeight> for Classes<'a> {
    fn from(weight: &'a FrozenWeight) -> Self {
        Self::Frozen(weight)
    }
}

impl Classes<'_> {
    pub(super) fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(weight) => Some(weight),
            Self::Frozen(_) => None,
        }
    }

    /// Outside the graph.
    pub(super) fn frozen(&self) -> FrozenWeight {
        match *self {
            Self::Tensor(weight) => weight.clone().into(),
            Self::Frozen(weight) => weight.clone(),
        }
    }

    pub(super) fn shape(&self) -> Result<Shape> {
        match self {
            Self::Tensor(weight) => Ok(weight.shape().clone()),
            Self::Frozen(weight) => Ok(weight.dims()?.into()),
        }
    }

    pub(super) fn device(&self) -> Device {
        match self {
            Self::Tensor(weight) => weight.device().clone(),
            Self::Frozen(weight) => weight.device(),
        }
    }
}
