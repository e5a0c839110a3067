use candle_core::cuda_backend::cudarc::driver::result;

use crate::nvml::uuid_text;

/// The UUIDs of CUDA's devices in its order, as NVML writes them; empty if CUDA cannot be initialized.
pub(in crate::monitor::gpu) fn uuids() -> Vec<String> {
    if result::init().is_err() {
        return Vec::new();
    }
    let count = result::device::get_count().unwrap_or(0);
    let uuids = (0..count).map(|ordinal| {
        let uuid = result::device::get(ordinal).and_then(result::device::get_uuid);
        // A device without a UUID keeps its place.
        uuid.map_or(String::new(), |uuid| {
            uuid_text(uuid.bytes.map(|byte| byte as u8))
        })
    });
    uuids.collect()
}
