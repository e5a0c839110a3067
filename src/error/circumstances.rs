//! What ran out, in which part of a step, and why.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of memory that ran out.
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
    /// Adding the micro-batch's gradients to the accumulated ones.
    Accumulate,
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
            Self::NeverFits => "a single sample does not fit",
            Self::Unknown => "the cause is not known",
        })
    }
}
