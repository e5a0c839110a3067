use candle_core::cuda_backend::cudarc::driver::result;

/// The UUIDs of CUDA's devices in its order, as NVML writes them; none where CUDA cannot be started.
pub(in crate::monitor::gpu) fn uuids() -> Vec<String> {
    if result::init().is_err() {
        return Vec::new();
    }
    let count = result::device::get_count().unwrap_or(0);
    let uuids = (0..count).map(|ordinal| {
        let uuid = result::device::get(ordinal).and_then(result::device::get_uuid);
        // A device that does not tell keeps its place.
        uuid.map_or(String::new(), |uuid| {
            text(uuid.bytes.map(|byte| byte as u8))
        })
    });
    uuids.collect()
}

fn text(bytes: [u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
