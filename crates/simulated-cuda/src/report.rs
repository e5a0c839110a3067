//! What a program did on its devices, written when it exits, where `SIMULATED_CUDA_REPORT` names a file: a line of JSON for each device that
//! it allocated on.

use std::fmt::Write;

use crate::device::Device;
use crate::simulator;

const VARIABLE: &str = "SIMULATED_CUDA_REPORT";

/// Has the report written at the program's exit, if one is asked for.
pub fn promise() {
    if std::env::var_os(VARIABLE).is_some() {
        // SAFETY: `write` needs nothing that the program's exit has destroyed: devices are never dropped.
        unsafe { libc::atexit(write) };
    }
}

extern "C" fn write() {
    let Some(file) = std::env::var_os(VARIABLE) else {
        return;
    };
    let devices = (0..simulator::count()).filter_map(simulator::lock_as_it_is);
    let mut lines = String::new();
    for device in devices.filter(|device| device.counted.allocations > 0) {
        _ = writeln!(lines, "{}", line(&device));
    }
    if let Err(error) = std::fs::write(&file, lines) {
        eprintln!("simulated CUDA: {}: {error}", file.display());
    }
}

fn line(device: &Device) -> String {
    let counted = device.counters();
    let numbers = [
        ("device", device.ordinal as u64),
        ("capacity_bytes", counted.device_capacity),
        ("peak_tensor_bytes", counted.peak_live_bytes),
        ("peak_used_bytes", counted.peak_used),
        ("peak_outside_pools_bytes", device.memory.most_overhead),
        ("allocations", counted.allocations),
        ("refused_allocations", counted.failed_allocations),
        ("kernels", counted.launches),
        ("library_calls", counted.library_calls),
        ("copies", counted.copies),
        ("synchronizations", counted.synchronizations),
    ];
    let numbers = numbers.map(|(name, number)| format!("\"{name}\":{number}"));
    format!("{{\"computes\":{},{}}}", device.computes, numbers.join(","))
}
