use bytesize::ByteSize;
use candle_core::DeviceLocation;

/// A device's memory cannot be opened, or its limit cannot be set. Nothing has changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A limit on host memory without the tracking allocator.
    #[error(
        "only the tracking allocator can limit host memory: add these two lines to the program:\n    #[global_allocator]\n    static ALLOCATOR: candle_headroom::TrackingAllocator = candle_headroom::TrackingAllocator::system();"
    )]
    AllocatorNotInstalled,
    /// More than the limit is in use already.
    #[error("a limit of {} is below the {} in use already: raise it, or set it before building the model", ByteSize(*.limit), ByteSize(*.in_use))]
    #[non_exhaustive]
    BelowUse {
        /// The requested limit, in bytes.
        limit: u64,
        /// In use already, in bytes.
        in_use: u64,
    },
    /// The machine does not report how much memory there is.
    #[error("the available memory cannot be read on this machine: give the limit in bytes")]
    Undetermined,
    /// The limit leaves a GPU's pool no room.
    #[error("a limit of {} is too small: it must be at least {}, for what the pool cannot give back and the 2 MiB that a GPU maps at once", ByteSize(*.limit), ByteSize(*.least))]
    #[non_exhaustive]
    TooSmall {
        /// The requested limit, in bytes.
        limit: u64,
        /// The smallest possible limit now, in bytes.
        least: u64,
    },
    /// A fraction outside (0, 1].
    #[error("limit fraction must be in (0, 1], got {0:?}")]
    Fraction(f64),
    /// Memory of the same device is open with another limit.
    #[error(
        "the memory of {device:?} is open already with {}, not {}: a device has one limit in a process, so share the handle or change it with `set_limit`",
        describe(*.open),
        describe(*.asked)
    )]
    #[non_exhaustive]
    AlreadyOpen {
        /// The device.
        device: DeviceLocation,
        /// The current limit, in bytes; `None` without one.
        open: Option<u64>,
        /// The requested limit, in bytes.
        asked: Option<u64>,
    },
    /// Memory of the same device is open with another growth.
    #[error(
        "the memory of CUDA device {ordinal} is open already with Growth::{open}, not {asked}: share its handles, or drop them first"
    )]
    #[non_exhaustive]
    OtherGrowth {
        /// The device's number in CUDA.
        ordinal: usize,
        /// The current growth.
        open: String,
        /// The requested growth.
        asked: String,
    },
    /// The program was built without CUDA, so it cannot open the CUDA device with this number.
    #[error("CUDA device {0} cannot be opened: build candle-headroom with its feature `cuda`")]
    NotBuilt(usize),
    /// There is no such device.
    #[error(
        "there is no CUDA device {ordinal}: the driver lists {count}, numbered from 0; CUDA_VISIBLE_DEVICES may hide others"
    )]
    #[non_exhaustive]
    NoSuchDevice {
        /// The requested device.
        ordinal: usize,
        /// The number of devices.
        count: usize,
    },
    /// The driver refuses the device, or lists none: for example because another process uses it exclusively.
    #[error("CUDA device {ordinal} cannot be opened, the driver returned {status}: {remedy}")]
    #[non_exhaustive]
    Unavailable {
        /// The requested device.
        ordinal: usize,
        /// The name of the driver's status code.
        status: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The CUDA device with this number has no stream-ordered memory pools.
    #[error(
        "CUDA device {0} does not support memory pools, so its memory can be neither limited nor counted: use `Device::new_cuda({0})` without a `DeviceMemory`"
    )]
    NoPools(usize),
    /// `Growth::Preallocate` could not take the whole limit at once.
    #[error("{} cannot be taken at once, {} are free on the device: lower the limit, or use `Growth::OnDemand`", ByteSize(*.bytes), ByteSize(*.free))]
    #[non_exhaustive]
    Preallocate {
        /// The bytes to take.
        bytes: u64,
        /// The bytes that the driver reports as free.
        free: u64,
    },
}

fn describe(limit: Option<u64>) -> String {
    let limit = limit.map(|limit| format!("a limit of {}", ByteSize(limit)));
    limit.unwrap_or("no limit".to_owned())
}
