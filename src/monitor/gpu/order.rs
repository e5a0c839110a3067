//! CUDA's order of the GPUs. By default CUDA numbers the fastest first and hides those that `CUDA_VISIBLE_DEVICES` leaves out; NVML
//! orders by PCI bus. UUIDs are the same in both.

/// The UUIDs of CUDA's devices in its order, as NVML writes them; empty if CUDA cannot be initialized, and without the feature `cuda`.
#[cfg(feature = "cuda")]
pub(super) fn uuids() -> Vec<String> {
    use candle_core::cuda_backend::cudarc::driver::result;

    if result::init().is_err() {
        return Vec::new();
    }
    let count = result::device::get_count().unwrap_or(0);
    let uuids = (0..count).map(|ordinal| {
        let uuid = result::device::get(ordinal).and_then(result::device::get_uuid);
        // A device without a UUID keeps its place.
        uuid.map_or(String::new(), |uuid| {
            crate::nvml::uuid_text(uuid.bytes.map(|byte| byte as u8))
        })
    });
    uuids.collect()
}

#[cfg(not(feature = "cuda"))]
pub(super) fn uuids() -> Vec<String> {
    Vec::new()
}
