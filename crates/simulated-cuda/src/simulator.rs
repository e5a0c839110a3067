//! All devices of the process. Each device has one lock, which guards all of its state and is held for a whole call. A call that
//! needs two devices locks them in the order of their ordinals.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use crate::device::Device;
use crate::device::late::{Wait, wait};
use crate::handle::{Handle, Kind};
use crate::nvml::system::uuid_text;
use crate::report;
use crate::status::{Outcome, Status};

/// Default number of devices; a test or the environment variable `SIMULATED_CUDA_DEVICES` can change it.
const DEFAULT_DEVICES: usize = 8;
/// The most devices whose ordinals fit into a handle.
const MOST_DEVICES: usize = 64;

/// A device and its address range, which never changes and needs no lock.
struct Slot {
    addresses: Range<u64>,
    device: Mutex<Device>,
}

static DEVICES: OnceLock<Box<[Slot]>> = OnceLock::new();
static WANTED: AtomicUsize = AtomicUsize::new(usize::MAX);
static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// The version that `cuDriverGetVersion` returns.
pub static DRIVER_VERSION: AtomicI32 = AtomicI32::new(13000);
/// Whether PTX newer than that version is refused.
pub static CHECKS_PTX: AtomicBool = AtomicBool::new(false);

/// Sets the number of devices; returns false once they exist.
pub fn choose_devices(number: usize) -> bool {
    WANTED.store(number.min(MOST_DEVICES), Ordering::SeqCst);
    DEVICES.get().is_none()
}

/// The devices, created at the first use.
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
        report::promise();
        (0..number).map(slot).collect()
    })
}

/// The number of devices.
pub fn count() -> usize {
    slots().len()
}

/// The devices that the driver shows, in its order: all, or those that `CUDA_VISIBLE_DEVICES` names by number or by the beginning of their
/// UUID, up to the first that there is not. NVML shows all.
pub fn visible() -> &'static [usize] {
    static VISIBLE: OnceLock<Vec<usize>> = OnceLock::new();
    VISIBLE.get_or_init(|| {
        let all = 0..count();
        let Ok(names) = std::env::var("CUDA_VISIBLE_DEVICES") else {
            return all.collect();
        };
        let mut visible = Vec::new();
        for name in names.split(',').map(str::trim) {
            let number = name.parse().ok().filter(|number| all.contains(number));
            let by_uuid = || {
                let mut named = all
                    .clone()
                    .filter(|number| uuid_text(*number).starts_with(name));
                named.next().filter(|_| name.starts_with("GPU-"))
            };
            match number.or_else(by_uuid) {
                Some(number) if !visible.contains(&number) => visible.push(number),
                // The driver shows none at all if one is named twice.
                Some(_) => return Vec::new(),
                None => break,
            }
        }
        visible
    })
}

/// Locks a device, whether or not the driver is initialized, and executes its late work unless the present call leaves it.
pub fn lock(ordinal: usize) -> Option<MutexGuard<'static, Device>> {
    let mut device = lock_as_it_is(ordinal)?;
    match wait() {
        Wait::All => device.finish(),
        Wait::Ready => _ = device.advance(),
        Wait::Nothing => {}
    }
    Some(device)
}

/// Locks a device and leaves its late work. Poisoning is ignored, because a panic in any thread ends the process.
pub fn lock_as_it_is(ordinal: usize) -> Option<MutexGuard<'static, Device>> {
    Some(
        slots()
            .get(ordinal)?
            .device
            .lock()
            .unwrap_or_else(PoisonError::into_inner),
    )
}

/// Locks a device unless a call has it locked.
pub fn try_lock(ordinal: usize) -> Option<MutexGuard<'static, Device>> {
    match slots().get(ordinal)?.device.try_lock() {
        Ok(device) => Some(device),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
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

/// Locks the device with this ordinal.
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
