use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use candle_core::Tensor;

use super::control::Control;
use crate::error::Result;

/// Sums and copies large buffers between the ranks of a group. MPI and NCCL are the engines.
///
/// All ranks make the same calls in the same order. After an error the group cannot be used any more.
///
/// Trainers, [`Group::sum`](super::Group::sum) and [`Group::broadcast`](super::Group::broadcast) choose an engine by themselves. With the feature
/// `testing` a program can call one, to test or time it:
///
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// use candle_headroom::distributed::{Group, Operation};
/// use candle_headroom::testing::{collectives, watch};
///
/// let group = Group::from_environment()?;
/// let buffer = Tensor::ones(4 * group.size(), DType::F32, &Device::Cpu)?;
/// match collectives(&group, &Device::Cpu)? {
///     Some(engine) => {
///         let watch = watch(&group, "a sum");
///         engine.exchange(&buffer, Operation::AllReduce { factor: 1. }, &watch)?;
///         engine.finish(&watch)?;
///     }
///     None => assert_eq!(group.size(), 1), // one rank has all of the sum
/// }
/// assert_eq!(buffer.to_vec1::<f32>()?[0], group.size() as f32);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Collectives: Debug + Send + Sync {
    /// The library and its version, such as `NCCL 2.27.3`.
    fn name(&self) -> String;

    /// The number of elements that one call moves best.
    fn bucket(&self) -> usize;

    /// Does this with the ranks' buffers, in place. It may return before the work is done.
    ///
    /// The buffer is contiguous and on the engine's device. A buffer to be summed or gathered is one-dimensional, and its length is a multiple of
    /// the number of ranks. A buffer to be summed is f32 or f64.
    ///
    /// # Errors
    /// [`GroupError`](crate::error::GroupError).
    fn exchange(&self, buffer: &Tensor, operation: Operation, watch: &Watch) -> Result<()>;

    /// Waits until the calls so far are done.
    ///
    /// # Errors
    /// [`GroupError`](crate::error::GroupError).
    fn finish(&self, watch: &Watch) -> Result<()>;
}

const _: Option<&dyn Collectives> = None; // object-safe

/// What [`Collectives`] do. A rank's piece of a buffer has `length / ranks` elements, from `rank · length / ranks` on.
///
/// Of two ranks with the buffers `[1, 2]` and `[3, 4]`:
///
/// | operation | rank 0 | rank 1 |
/// |---|---|---|
/// | [`ReduceScatter`](Self::ReduceScatter) | `[4, …]` | `[…, 6]` |
/// | [`AllReduce`](Self::AllReduce) with factors of 1 | `[4, 6]` | `[4, 6]` |
/// | [`AllGather`](Self::AllGather) | `[1, 4]` | `[1, 4]` |
/// | [`Broadcast`](Self::Broadcast) from rank 0 | `[1, 2]` | `[1, 2]` |
///
/// ```
/// use candle_headroom::distributed::Operation;
///
/// // The mean of 4 ranks' gradients, which have equal weights.
/// let mean = Operation::AllReduce { factor: 1. / 4. };
/// assert_eq!(mean, Operation::AllReduce { factor: 0.25 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    /// Sums the ranks' buffers. Afterwards this rank's piece holds the sum; what the rest holds is not specified.
    ReduceScatter,
    /// Sums the ranks' buffers, of which each is first multiplied by its rank's `factor`. Afterwards all ranks hold the sum, with the same bits
    /// as after a multiplication, [`ReduceScatter`](Self::ReduceScatter) and [`AllGather`](Self::AllGather).
    AllReduce {
        /// This rank's.
        factor: f64,
    },
    /// Copies each rank's piece to all ranks.
    AllGather,
    /// Copies rank `from`'s buffer, of any shape and type, to all ranks.
    Broadcast {
        /// The rank to copy from.
        from: usize,
    },
}

impl Operation {
    /// Its name in errors.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "mpi")),
        expect(dead_code, reason = "no engine has errors")
    )]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ReduceScatter => "a reduce-scatter",
            Self::AllReduce { .. } => "a sum",
            Self::AllGather => "an all-gather",
            Self::Broadcast { .. } => "a broadcast",
        }
    }
}

/// Ends a wait for other ranks when one of them is lost, or takes too long.
#[derive(Debug, Clone)]
pub struct Watch {
    control: Arc<Control>,
    /// By the control's clock.
    until: Duration,
    what: &'static str,
}

impl Watch {
    /// Gives the others the group's timeout from now on to do `what`.
    pub(crate) fn new(control: &Arc<Control>, what: &'static str) -> Self {
        control.begin_exchange();
        Self {
            control: Arc::clone(control),
            until: control.now() + control.timeout(),
            what,
        }
    }

    /// Fails if a rank is known to be lost, or the time is up. An engine calls it again and again while it waits.
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    /// use candle_headroom::testing::watch;
    ///
    /// let group = Group::from_environment()?;
    /// let watch = watch(&group, "a sum"); // from now on, the group's timeout runs
    /// assert!(watch.check().is_ok());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`GroupError::PeerLost`](crate::error::GroupError::PeerLost).
    pub fn check(&self) -> Result<()> {
        self.control.check(self.what)?;
        match self.control.now() < self.until {
            true => Ok(()),
            false => Err(self.control.time_out(self.what)),
        }
    }
}
