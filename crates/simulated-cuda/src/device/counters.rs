//! A device's counters, for tests to read.

/// The counters of one device, as `simulated_cuda_counters` returns them.
/// Those marked `calls` count since the last reset; the others are the state at the time of the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls: requested device allocations, failed ones included.
    pub allocations: u64,
    /// Calls: device allocations that were freed.
    pub frees: u64,
    /// Calls: device allocations that failed, for lack of memory or injected.
    pub failed_allocations: u64,
    /// Device allocations that are live.
    pub live_allocations: u64,
    /// Bytes requested by the live allocations.
    pub live_bytes: u64,
    /// The highest `live_bytes` since the last reset.
    pub peak_live_bytes: u64,
    /// Calls: kernel launches, without those that a lost context refused.
    pub launches: u64,
    /// Calls: computations of cuBLAS and cuDNN and generations of cuRAND, without those that a lost context refused.
    pub library_calls: u64,
    /// Calls: copies and memsets.
    pub copies: u64,
    /// Calls: stream, event and context synchronizations.
    pub synchronizations: u64,
    pub live_events: u64,
    pub live_streams: u64,
    pub live_modules: u64,
    /// Pools that were created and not destroyed, without the default pool.
    pub live_pools: u64,
    /// Handles of cuBLAS and cuDNN, and cuRAND generators.
    pub live_libraries: u64,
    /// Bytes of pinned host memory.
    pub live_host_bytes: u64,
    /// How many times the primary context is retained.
    pub retained_contexts: u64,
    /// Calls from a thread without a current context, including frees.
    pub invalid_context_calls: u64,
    /// Calls: frees refused because the context was lost or none was current; the memory is leaked.
    pub refused_frees: u64,
    /// Bytes of the device that are not free.
    pub device_used: u64,
    pub device_capacity: u64,
    /// Bytes that pools and direct allocations have reserved.
    pub reserved_bytes: u64,
    pub neighbour_bytes: u64,
    /// The status that the lost context returns; 0 while it is valid.
    pub lost_context: u64,
    /// Calls: copies from pinned memory that the host has waited for.
    pub copies_checked: u64,
    /// Calls: mistakes with such copies; see `src/device/copies.rs`.
    pub hazards: u64,
    /// The highest `device_used` after an allocation since the last reset.
    pub peak_used: u64,
}
