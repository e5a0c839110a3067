//! The kinds of entries in the tables.

use super::version::Version;

/// A status code of a library, its cause and its remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) number: u32,
    /// As in the library's header.
    pub(crate) name: &'static str,
    pub(crate) cause: &'static str,
    pub(crate) remedy: &'static str,
}

/// The action that a message of the kernel module requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum XidAction {
    RestartApplication,
    Ignore,
    FollowOther,
    ResetGpu,
    CheckPower,
    CheckNvlink,
    UpdateSoftware,
    Reboot,
    /// The message's own text names the action.
    SaidInText,
}

/// The severity of a reason for lower clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    Benign,
    Note,
    Warning,
    Failure,
}

/// A bit of NVML's clock event reasons.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClockReason {
    pub(crate) bit: u64,
    pub(crate) text: &'static str,
    pub(crate) weight: Weight,
}

/// A release of the CUDA toolkit, and the driver that was packaged with it.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) cuda: Version,
    pub(crate) linux: Version,
}
