use std::fmt::Debug;

use candle_core::Tensor;

use super::watch::Watch;
use crate::error::Result;
use crate::optim::blend;

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

    /// Sums the ranks' buckets, of which each is first multiplied by its rank's `factor`. Afterwards all ranks hold the sum, with
    /// the same bits as after a multiplication, [`reduce_scatter`](Self::reduce_scatter) and [`all_gather`](Self::all_gather).
    ///
    /// `bucket` is as for `reduce_scatter`. With a bf16 bucket the factor is 1.
    ///
    /// # Errors
    /// [`GroupError`](crate::error::GroupError).
    fn all_reduce(&self, bucket: &Tensor, factor: f64, watch: &Watch) -> Result<()> {
        if factor != 1. {
            blend(bucket, factor, 0., None)?;
        }
        self.reduce_scatter(bucket, watch)?;
        self.all_gather(bucket, watch)
    }

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
