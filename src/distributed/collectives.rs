use std::fmt::Debug;

use candle_core::Tensor;

use super::watch::Watch;
use crate::error::Result;

/// Sums and copies large buffers between the ranks of a group. MPI and NCCL are the engines.
///
/// All ranks make the same calls in the same order. After an error the group cannot be used any more.
pub trait Collectives: Debug + Send + Sync {
    /// The library and its version, such as `NCCL 2.27.3`.
    fn name(&self) -> String;

    /// The number of elements that one call moves best.
    fn bucket(&self) -> usize;

    /// Sums the ranks' buckets. Afterwards this rank's piece, of `length / ranks` elements from `rank · length / ranks` on, holds the sum; what
    /// the rest holds is not specified.
    ///
    /// `bucket` is one-dimensional, contiguous, f32, f64 or bf16, on the engine's device, and its length is a multiple of the number of ranks.
    ///
    /// # Errors
    /// [`GroupError`](crate::error::GroupError).
    fn reduce_scatter(&self, bucket: &Tensor, watch: &Watch) -> Result<()>;

    /// Copies each rank's piece of the bucket to all ranks.
    ///
    /// # Errors
    /// [`GroupError`](crate::error::GroupError).
    fn all_gather(&self, bucket: &Tensor, watch: &Watch) -> Result<()>;

    /// Copies rank `from`'s buffer to all ranks: a contiguous tensor of any shape and type.
    ///
    /// # Errors
    /// [`GroupError`](crate::error::GroupError).
    fn broadcast(&self, buffer: &Tensor, from: usize, watch: &Watch) -> Result<()>;

    /// Waits until the calls so far are done; the others may return before that.
    ///
    /// # Errors
    /// [`GroupError`](crate::error::GroupError).
    fn finish(&self, watch: &Watch) -> Result<()>;
}

const _: Option<&dyn Collectives> = None; // object-safe
