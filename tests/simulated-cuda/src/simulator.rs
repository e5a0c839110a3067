//! All devices of the process. Every device has one lock, which guards all of its state and is held for a whole call;
//! a call that needs two devices locks them in the order of their ordinals.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::device::Device;
use crate::handle::{Handle, Kind};
use crate::status::{Outcome, Status};

/// Devices unless a test or the environment variable `SIMULATED_CUDA_DEVICES` chooses otherwise.
const DEFAULT_DEVICES: usize = 8;
/// A handle has this much room for the ordinal.
const MOST_DEVICES: usize = 64;

/// A device and, outside its lock, the addresses that are its own: they never change.
struct Slot {
    addresses: Range<u64>,
    device: Mutex<Device>,
}

static DEVICES: OnceLock<Box<[Slot]>> = OnceLock::new();
static WANTED: AtomicUsize = AtomicUsize::new(usize::MAX);
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// What `cuDriverGetVersion` answers.
pub static DRIVER_VERSION: AtomicI32 = AtomicI32::new(13000);
/// Whether PTX that is newer than that version is refused.
pub static CHECKS_PTX: AtomicBool = AtomicBool::new(false);

/// Chooses the number of devices: false once they exist.
pub fn choose_devices(number: usize) -> bool {
    WANTED.store(number.min(MOST_DEVICES), Ordering::SeqCst);
    DEVICES.get().is_none()
}

/// The devices, which the first use creates.
fn slots() -> &'static [Slot] {
    DEVICES.get_or_init(|| {
        let chosen = Some(WANTED.load(Ordering::SeqCst)).filter(|number| *number != usize::MAX);
        let named = || std::env::var("SIMULATED_CUDA_DEVICES").ok()?.parse().ok();
        let number = chosen
            .or_else(named)
            .unwrap_or(DEFAULT_DEVICES)
            .min(MOST_DEVICES);
        let slot = |ordinal| {
            let device = Device::new(ordinal);
            Slot {
                addresses: device.memory.range.addresses(),
                device: Mutex::new(device),
            }
        };
        (0..number).map(slot).collect()
    })
}

/// The number of devices.
pub fn count() -> usize {
    slots().len()
}

/// Locks a device, whether or not the driver is initialised. A panic in another thread ends the process anyway, so a
/// poisoned lock is none of this thread's concern.
pub fn lock(ordinal: usize) -> Option<MutexGuard<'static, Device>> {
    Some(
        slots()
            .get(ordinal)?
            .device
            .lock()
            .unwrap_or_else(PoisonError::into_inner),
    )
}

/// Marks the driver as initialised.
pub fn initialize() {
    INITIALIZED.store(true, Ordering::SeqCst);
}

/// Fails before `cuInit`.
pub fn check_initialized() -> Outcome {
    if INITIALIZED.load(Ordering::SeqCst) {
        Ok(())
    } else {
        Err(Status::NOT_INITIALIZED)
    }
}

/// Locks the device that a program names by ordinal.
pub fn device(ordinal: i32) -> Outcome<MutexGuard<'static, Device>> {
    check_initialized()?;
    usize::try_from(ordinal)
        .ok()
        .and_then(lock)
        .ok_or(Status::INVALID_DEVICE)
}

/// Locks the device of a handle.
pub fn of_handle(raw: u64, kind: Kind) -> Outcome<(MutexGuard<'static, Device>, u64)> {
    let handle = Handle::decode(raw, kind)?;
    Ok((
        lock(handle.device).ok_or(Status::INVALID_HANDLE)?,
        handle.serial,
    ))
}

/// The ordinal of the device whose address range holds an address; takes no lock.
pub fn owner(address: u64) -> Option<usize> {
    slots()
        .iter()
        .position(|slot| slot.addresses.contains(&address))
}
