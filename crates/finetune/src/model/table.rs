use candle_core::{DType, Result, Tensor};
use candle_headroom::nn::loss::Classes;
use candle_headroom::nn::quantized::{FrozenLinear, FrozenWeight};
use candle_headroom::nn::{Embedding, Linear, Module};

/// A number for each token and dimension, (vocabulary, hidden): the embedding or the head. A clone shares them.
#[derive(Clone)]
pub enum Table {
    /// May be trained.
    Tensor(Tensor),
    Frozen(FrozenWeight),
}

impl Table {
    /// The rows of tokens of any shape, in this type.
    pub fn embed(&self, tokens: &Tensor, dtype: DType) -> Result<Tensor> {
        match self {
            Self::Tensor(table) => Embedding::new(table.clone(), table.dim(1)?).forward(tokens),
            Self::Frozen(table) => table.embedding(tokens)?.to_dtype(dtype),
        }
    }

    /// Scores of all tokens.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        match self {
            Self::Tensor(table) => Linear::new(table.clone(), None).forward(hidden),
            Self::Frozen(table) => FrozenLinear::new(table.clone(), None)?.forward(hidden),
        }
    }

    pub fn classes(&self) -> Classes<'_> {
        match self {
            Self::Tensor(table) => table.into(),
            Self::Frozen(table) => table.into(),
        }
    }

    pub fn without_graph(&self) -> Self {
        match self {
            Self::Tensor(table) => Self::Tensor(table.detach()),
            Self::Frozen(table) => Self::Frozen(table.clone()),
        }
    }
}
