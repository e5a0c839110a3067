//! What a GPU reports by itself: messages in the kernel's log, and reasons for lower clocks.

use crate::Severity;

/// What a message of the kernel module (Xid) requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XidAction {
    /// Nothing now, or the number is unknown.
    Nothing,
    RestartApplication,
    /// What to do with the machine, and a command for it, in which `-i N` names the GPU.
    Repair(&'static str, &'static str),
}

const RESET: XidAction = XidAction::Repair(
    "end the GPU's programs and reset it, unless that has been done since",
    "sudo nvidia-smi --gpu-reset -i N",
);
const REBOOT: XidAction = XidAction::Repair(
    "restart the machine, unless that has been done since",
    "sudo reboot",
);
const CHECK_NVLINK: XidAction =
    XidAction::Repair("check the NVLink connections", "nvidia-smi nvlink --status");

/// The immediate action for an Xid, on Ampere and later GPUs.
/// NVIDIA, Xid catalog, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html; 2026-11.
pub fn xid(number: u32, text: &str) -> XidAction {
    match number {
        8 | 11 | 13 | 25 | 31 | 32 | 39 | 40 | 41 | 69 | 94 => XidAction::RestartApplication,
        46 | 48 | 62 | 64 | 95 | 109 | 110 | 119 | 120 | 140 | 143 | 158 => RESET,
        54 => XidAction::Repair("attach the GPU's auxiliary power", ""),
        74 => CHECK_NVLINK,
        78 => XidAction::Repair("update the driver and the firmware", "nvidia-smi"),
        79 => REBOOT,
        // The text names the action: "changed from 0x0 (None) to 0x1 (GPU Reset Required)".
        154 if text.contains("Node Reboot Required") => REBOOT,
        154 if text.contains("GPU Reset Required") => RESET,
        154 if text.contains("Drain and Reset") => RESET,
        154 if text.contains("Drain P2P") => CHECK_NVLINK,
        _ => XidAction::Nothing,
    }
}

/// A reason for lower clocks: its bit in NVML's clock event reasons, how bad it is, and a text.
pub type ClockReason = (u64, Severity, &'static str);

/// NVML's reasons for clocks below their maximum.
/// NVIDIA, nvml.h, `nvmlClocksEventReason*`; severities by DCGM and by effect; 2026-11.
const CLOCK_REASONS: [ClockReason; 9] = [
    (0x1, Severity::Ok, "idle"),
    (0x2, Severity::Ok, "clocks set by a user"),
    (0x4, Severity::Note, "power limit"),
    (0x8, Severity::Failure, "hardware slowdown"),
    (0x10, Severity::Ok, "synchronised boost"),
    (0x20, Severity::Warning, "temperature, by software"),
    (0x40, Severity::Failure, "temperature, by hardware"),
    (0x80, Severity::Failure, "power brake, by hardware"),
    (0x100, Severity::Ok, "display clocks"),
];

/// The listed reasons among `bits`.
pub fn clock_reasons(bits: u64) -> impl Iterator<Item = &'static ClockReason> {
    CLOCK_REASONS
        .iter()
        .filter(move |(bit, ..)| bits & bit != 0)
}

/// The bits that are not listed.
pub fn unknown_clock_reasons(bits: u64) -> u64 {
    clock_reasons(bits).fold(bits, |left, (bit, ..)| left & !bit)
}
