//! Sensors and modes of a device, with the constant values of an H100 at work.

use super::control::figure;
use super::{NOT_SUPPORTED, answer, device, give};

/// `nvmlUtilization_t`, in percent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Utilization {
    pub gpu: u32,
    pub memory: u32,
}

/// How busy a device is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(handle: u64, to: *mut Utilization) -> u32 {
    answer(|| {
        let _device = device("nvmlDeviceGetUtilizationRates", handle)?;
        // SAFETY: the caller passes a place for them.
        unsafe {
            give(
                to,
                Utilization {
                    gpu: 50,
                    memory: 25,
                },
            )
        }
    })
}

/// Declares entry points that return one number.
macro_rules! constants {
    ($($(#[$doc:meta])* fn $name:ident($($ignored:ident: $kind:ty),*) -> $value:expr;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: u64, $($ignored: $kind,)* to: *mut u32) -> u32 {
            answer(|| {
                let ordinal = device(stringify!($name), handle)?.ordinal;
                let figure = figure(ordinal, stringify!($name));
                // SAFETY: the caller passes a place for one number.
                unsafe { give(to, figure.map_or($value, |figure| figure as u32)) }
            })
        }
    )*};
}

constants! {
    /// The temperature in degrees Celsius.
    fn nvmlDeviceGetTemperature(_sensor: u32) -> 45;
    /// The power in milliwatts.
    fn nvmlDeviceGetPowerUsage() -> 350_000;
    /// The enforced power limit in milliwatts.
    fn nvmlDeviceGetEnforcedPowerLimit() -> 700_000;
    /// A clock in MHz.
    fn nvmlDeviceGetClockInfo(_clock: u32) -> 1980;
    /// The highest frequency of a clock, in MHz.
    fn nvmlDeviceGetMaxClockInfo(_clock: u32) -> 1980;
    /// Persistence mode: on.
    fn nvmlDeviceGetPersistenceMode() -> 1;
    /// Whether several processes may use the device: yes.
    fn nvmlDeviceGetComputeMode() -> 0;
    /// Lanes of the link to the host.
    fn nvmlDeviceGetCurrPcieLinkWidth() -> 16;
    /// Generation of the link to the host.
    fn nvmlDeviceGetCurrPcieLinkGeneration() -> 5;
    /// Traffic on the link to the host, in KB per second.
    fn nvmlDeviceGetPcieThroughput(_counter: u32) -> 0;
}

/// Why the clocks are lower than they could be: a bit mask, 0 unless a test sets it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksEventReasons(handle: u64, to: *mut u64) -> u32 {
    answer(|| {
        let function = "nvmlDeviceGetCurrentClocksEventReasons";
        let ordinal = device(function, handle)?.ordinal;
        // SAFETY: the caller passes a place for one number.
        unsafe { give(to, figure(ordinal, function).unwrap_or(0)) }
    })
}

/// The older name of [`nvmlDeviceGetCurrentClocksEventReasons`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    handle: u64,
    to: *mut u64,
) -> u32 {
    // SAFETY: the same contract.
    unsafe { nvmlDeviceGetCurrentClocksEventReasons(handle, to) }
}

/// Whether memory errors are corrected, now and after the next restart.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEccMode(
    handle: u64,
    current: *mut u32,
    pending: *mut u32,
) -> u32 {
    answer(|| {
        let _device = device("nvmlDeviceGetEccMode", handle)?;
        // SAFETY: the caller passes places for two numbers.
        unsafe { give(current, 1).and_then(|()| give(pending, 1)) }
    })
}

/// Number of memory errors, 0 unless a test sets it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    handle: u64,
    _kind: u32,
    _counter: u32,
    to: *mut u64,
) -> u32 {
    answer(|| {
        let function = "nvmlDeviceGetTotalEccErrors";
        let ordinal = device(function, handle)?.ordinal;
        // SAFETY: the caller passes a place for one number.
        unsafe { give(to, figure(ordinal, function).unwrap_or(0)) }
    })
}

/// Whether the device is divided (MIG): not supported.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceGetMigMode(handle: u64, _current: u64, _pending: u64) -> u32 {
    answer(|| {
        device("nvmlDeviceGetMigMode", handle)
            .map(drop)
            .and(Err(NOT_SUPPORTED))
    })
}
