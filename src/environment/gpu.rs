/// A GPU, as NVML or CUDA describes it; `None` for what neither reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Gpu {
    /// NVML's index, by PCI address; CUDA's ordinal without NVML.
    pub index: u32,
    /// CUDA's ordinal, if it is known which of CUDA's devices this is.
    pub ordinal: Option<u32>,
    /// Such as `NVIDIA H200`.
    pub name: Option<String>,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// The board's serial number.
    pub serial: Option<String>,
    /// The PCI address.
    pub pci: Option<String>,
    /// Major and minor.
    pub compute_capability: Option<(u32, u32)>,
    /// Bytes; the host's memory if the GPU shares it.
    pub memory_total: Option<u64>,
    /// Free bytes at the time of the check; `None` for a GPU that is divided (MIG), since each instance has its own part.
    pub memory_free: Option<u64>,
    /// Whether this process sees the GPU: by CUDA's own list, or by `CUDA_VISIBLE_DEVICES` without such a list. The variable counts in
    /// CUDA's order, which can differ from NVML's on machines with different GPUs.
    pub visible: bool,
}
