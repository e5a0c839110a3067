use candle_core::{DType, Shape};

/// The closure of a [`recompute`](crate::nn::recompute()) region did not do the same when it ran again in the backward pass.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecomputeError {
    /// Another number of outputs.
    #[error(
        "a recomputed region returned {again} tensors after {first} in its first run: its closure may change nothing that it depends on"
    )]
    #[non_exhaustive]
    Outputs {
        /// Outputs of the first run.
        first: usize,
        /// Outputs of the second run.
        again: usize,
    },
    /// An output of another shape or type.
    #[error(
        "a recomputed region returned {again:?} after {first:?} in its first run: its closure may change nothing that it depends on, such as a key-value cache"
    )]
    #[non_exhaustive]
    Shape {
        /// The output of the first run.
        first: (Shape, DType),
        /// That of the second run.
        again: (Shape, DType),
    },
    /// Other values. On a GPU only the first regions of a thread are compared.
    #[error(
        "a recomputed region returned values that differ by up to {off:.3e} from those of its first run, which reach {scale:.3e}: use the layers of `candle_headroom::nn`, whose dropout is the same again, and seed other randomness"
    )]
    #[non_exhaustive]
    Values {
        /// The largest difference.
        off: f64,
        /// The largest value of the first run.
        scale: f64,
    },
    /// The second run used a Var of this shape that the first one did not, so its gradient has no way out.
    #[error(
        "a recomputed region used a Var of shape {0:?} that its first run did not use: make the choice of layers outside, or give the region the tensors that it depends on"
    )]
    Var(Shape),
}
