//! What ran out, in which part of a step, why, who holds the memory, and what would free some of it.

use std::borrow::Cow;
use std::fmt;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// The kind of memory that ran out.
///
/// Where one of NVIDIA's libraries failed, it is found by the name of the status:
///
/// | resource | statuses |
/// |---|---|
/// | device memory | `CUDA_ERROR_OUT_OF_MEMORY`, `cudaErrorMemoryAllocation` |
/// | library workspace | `CUBLAS_STATUS_ALLOC_FAILED`, `CURAND_STATUS_ALLOCATION_FAILED`, and of cuDNN `CUDNN_STATUS_ALLOC_FAILED` and `…_DEVICE_ALLOCATION_FAILED` |
/// | host memory | `NVRTC_ERROR_OUT_OF_MEMORY`, and of cuDNN `…_HOST_ALLOCATION_FAILED` |
///
/// Libraries often say `NOT_INITIALIZED`, `INTERNAL_ERROR` or `EXECUTION_FAILED` in place of the second row. In trainers, in
/// [`process_batches`](crate::process_batches), in [`find_batch_size`](crate::batch::find_batch_size) and where a GPU's memory is opened, these are
/// exhaustions of a workspace too if the device is healthy and has less than the [`library_reserve`](crate::memory::library_reserve) free.
///
/// ```
/// use candle_headroom::ErrorExt;
/// use candle_headroom::error::Resource;
///
/// let error = candle_core::Error::msg("CublasError(CUBLAS_STATUS_ALLOC_FAILED)");
/// let exhausted = error.resource_exhausted().expect("an exhaustion");
/// assert_eq!(exhausted.resource, Resource::LibraryWorkspace);
/// assert_eq!(Resource::LibraryWorkspace.to_string(), "library workspace");
/// ```
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Resource {
    /// Memory of the accelerator.
    DeviceMemory,
    /// Memory of the process on the host.
    HostMemory,
    /// Page-locked host memory for transfers.
    PinnedMemory,
    /// Scratch memory that cuBLAS, cuDNN or cuRAND allocates for itself.
    LibraryWorkspace,
    /// Read from a file, and not one that this version knows.
    #[default]
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeviceMemory => "device memory",
            Self::HostMemory => "host memory",
            Self::PinnedMemory => "pinned host memory",
            Self::LibraryWorkspace => "library workspace",
            Self::Unknown => "memory",
        })
    }
}

/// The part of a step in which memory ran out.
///
/// `{}` and files have it in snake case:
///
/// ```
/// use candle_headroom::error::Phase;
///
/// assert_eq!(Phase::Backward.to_string(), "backward");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Phase {
    /// Cutting the micro-batch out of the batch, or moving it to the device.
    Transfer,
    /// The user's closure: the forward pass and the loss.
    Forward,
    /// The backward pass.
    Backward,
    /// Within the backward pass, the second run of a [`recompute`](crate::nn::recompute()) region and its own backward pass.
    Recompute,
    /// Adding the micro-batch's gradients to the accumulated ones.
    Accumulate,
    /// Waiting for the other ranks, before an update.
    Wait,
    /// Adding the gradients of all ranks.
    Reduce,
    /// The optimizer's update.
    Optimizer,
    /// Loading parameters or data.
    Load,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Why memory ran out.
///
/// | cause | what usually helps |
/// |---|---|
/// | [`Limit`](Self::Limit) | a higher limit, smaller micro-batches |
/// | [`DeviceFull`](Self::DeviceFull) | smaller micro-batches, stored activations recomputed |
/// | [`Fragmented`](Self::Fragmented) | [`recover`](crate::recover), which a trainer calls before each retry |
/// | [`Neighbour`](Self::Neighbour) | ending the other process, or a limit that leaves it room |
/// | [`IndexRange`](Self::IndexRange) | smaller micro-batches |
/// | [`NeverFits`](Self::NeverFits) | [`nn::recompute`](crate::nn::recompute()), adapters, a smaller type |
///
/// ```
/// use candle_headroom::error::Cause;
///
/// assert_eq!(Cause::Neighbour.to_string(), "another process holds the memory");
/// ```
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Cause {
    /// The limit that the program set for itself.
    Limit,
    /// The device has no memory left, and this program holds it.
    DeviceFull,
    /// Enough is free in total, but not in one piece.
    Fragmented,
    /// Another process holds the memory.
    Neighbour,
    /// A tensor would have more elements than a kernel on the GPU can index: candle's count to 2^31 − 1. Memory may be free.
    IndexRange,
    /// A single sample needs more than there is.
    NeverFits,
    /// The numbers do not show why.
    #[default]
    #[serde(other)]
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "the limit is reached",
            Self::DeviceFull => "the device is full",
            Self::Fragmented => "the free memory is in pieces",
            Self::Neighbour => "another process holds the memory",
            Self::IndexRange => "a tensor has more elements than a kernel can index",
            Self::NeverFits => "a single sample does not fit",
            Self::Unknown => "the cause is not known",
        })
    }
}

/// Something that holds memory while work fails.
///
/// They are in [`ResourceExhausted::held`](super::ResourceExhausted::held) after a failure, and in
/// [`Estimate::held`](crate::train::Estimate::held) before a step.
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_headroom::{AdamW, train::Estimate};
///
/// let w = Var::zeros(1000, DType::F32, &Device::Cpu)?;
/// let estimate = Estimate::new(&AdamW::builder(vec![w]).build()?);
/// let held = estimate.held.iter().map(|held| (&*held.what, held.bytes));
/// let expected = [("parameters", 4000), ("accumulated gradients", 4000), ("optimizer state", 8000)];
/// assert!(held.eq(expected));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holding {
    /// `parameters`, `accumulated gradients`, `optimizer state`, [`ACTIVATIONS`](Self::ACTIVATIONS) or [`OTHER`](Self::OTHER).
    pub what: Cow<'static, str>,
    /// Its size in bytes from shapes and types; an allocator may round it up. Activations are an estimate of the policy's model.
    pub bytes: u64,
}

impl Holding {
    /// Activations of the micro-batch's samples, by the policy's model.
    pub const ACTIVATIONS: &'static str = "activations (by the fit)";
    /// Memory of this process that is not the trainer's: the batch, other models, other threads. A processor's model too, because
    /// a processor does not know it.
    pub const OTHER: &'static str = "other memory of this process";

    /// `bytes` bytes of `what`.
    ///
    /// ```
    /// use candle_headroom::error::Holding;
    ///
    /// let cache = Holding::new("key-value cache", 1 << 20);
    /// assert_eq!((&*cache.what, cache.bytes), ("key-value cache", 1_048_576));
    /// ```
    pub fn new(what: impl Into<Cow<'static, str>>, bytes: u64) -> Self {
        let what = what.into();
        Self { what, bytes }
    }
}

/// One thing that would help. `{}` is the advice, with the bytes where they are known.
///
/// ```
/// use candle_headroom::error::Remedy;
///
/// let remedy = Remedy::new("train in bf16", Some(1 << 30));
/// assert_eq!(remedy.to_string(), "train in bf16 (saves about 1.0 GiB)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Remedy {
    /// What to do.
    pub advice: Cow<'static, str>,
    /// The bytes that it would save at least, where that can be estimated.
    pub saves: Option<u64>,
}

impl Remedy {
    /// With the bytes that the advice would save, where that can be estimated.
    ///
    /// ```
    /// use candle_headroom::error::Remedy;
    ///
    /// let remedy = Remedy::new("shorter texts", None); // what it saves is not known
    /// assert_eq!(remedy.to_string(), "shorter texts");
    /// ```
    pub fn new(advice: impl Into<Cow<'static, str>>, saves: Option<u64>) -> Self {
        let advice = advice.into();
        Self { advice, saves }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.advice)?;
        match self.saves {
            Some(bytes) => write!(f, " (saves about {})", ByteSize(bytes)),
            None => Ok(()),
        }
    }
}
