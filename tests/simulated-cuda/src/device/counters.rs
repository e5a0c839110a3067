//! What a device has counted, for tests to read.

/// The figures of one device, as `simulated_cuda_counters` gives them.
/// Those marked «calls» count since the last reset; the others are the state at the moment of the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls: device allocations that were asked for, failed ones included.
    pub allocations: u64,
    /// Calls: device allocations that were freed.
    pub frees: u64,
    /// Calls: device allocations that failed, for lack of memory or by order.
    pub failed_allocations: u64,
    /// Device allocations that are live.
    pub live_allocations: u64,
    /// Bytes that the live allocations asked for.
    pub live_bytes: u64,
    /// The most that `live_bytes` has been since the last reset.
    pub peak_live_bytes: u64,
    /// Calls: kernel launches, without those that a lost context refused.
    pub launches: u64,
    /// Calls: cuBLAS computations and cuRAND generations, likewise.
    pub library_calls: u64,
    /// Calls: copies and memsets.
    pub copies: u64,
    /// Calls: stream, event and context synchronisations.
    pub synchronizations: u64,
    pub live_events: u64,
    pub live_streams: u64,
    pub live_modules: u64,
    /// Pools that were created and not destroyed; the default pool is not among them.
    pub live_pools: u64,
    /// cuBLAS handles and cuRAND generators.
    pub live_libraries: u64,
    /// Bytes of pinned host memory.
    pub live_host_bytes: u64,
    /// Times the primary context is retained.
    pub retained_contexts: u64,
    /// Calls that came from a thread without a current context, frees among them.
    pub invalid_context_calls: u64,
    /// Calls: frees that did not happen, for a lost context or for want of a current one: leaks.
    pub refused_frees: u64,
    /// Bytes of the device that are not free.
    pub device_used: u64,
    pub device_capacity: u64,
    /// Bytes that pools and direct allocations have reserved.
    pub reserved_bytes: u64,
    pub neighbour_bytes: u64,
    /// The status that the lost context answers with; 0 while it is sound.
    pub lost_context: u64,
}
