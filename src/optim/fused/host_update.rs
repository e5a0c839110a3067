use std::time::Duration;

/// What updates moments in host memory; for [`FusedBuilder::host_update`](super::FusedBuilder::host_update). The results are the same
/// to the bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostUpdate {
    /// The device or the host's cores, whichever is faster. The first eight updates take turns, wait for the device, and are timed: of
    /// each kind the first does not count, and the median of the other three decides for the optimizer's lifetime. Updates that are
    /// skipped, or in which no moved parameter has a gradient, are not counted.
    #[default]
    Fastest,
    /// The device. Its kernels read and write state over the bus, in both directions at once; the host does not wait.
    Device,
    /// The host's cores: gradients and parameters come down, and new parameters go up, after Ren et al. 2021, "ZeRO-Offload" (arXiv
    /// 2101.06840). Each update waits until the gradients are down. It takes more page-locked memory: room for the gradient (f32 for f16
    /// and bf16 parameters), the old and the new values of each moved parameter.
    Cores,
}

/// How moments in host memory are updated; from [`Fused::host_update`](super::Fused::host_update).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostUpdates {
    /// What updates them; [`HostUpdate::Fastest`] until that is decided.
    pub by: HostUpdate,
    /// Median time of an update by the device, with the update of the parameters that have not moved; `None` if it was not measured.
    pub device: Option<Duration>,
    /// The same by the host's cores.
    pub cores: Option<Duration>,
    /// Bytes of page-locked memory for updates by the host's cores, besides the state; given back if the device is faster.
    pub staging_bytes: u64,
}
