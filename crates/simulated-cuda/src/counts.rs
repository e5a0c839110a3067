//! What a program asks the driver for, by kind and by phase (`src/marks.rs`): in JSON, for the program itself or the report at its exit. A test
//! can so hold a training step to so many launches, bytes and synchronizations. Nothing here depends on whether devices compute.
//!
//! It is off unless `SIMULATED_CUDA_COUNTS=1` or the program asks for it. While it is off, each place that counts reads one flag.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::marks;

mod entered;
mod json;

pub use entered::call;
pub use json::*;

/// The variable that switches counting on from the start.
const VARIABLE: &str = "SIMULATED_CUDA_COUNTS";

/// The states of [`STATE`].
const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// By phase; the empty text is outside of all phases. A place that counts holds no other lock of this module's, so it may hold a device's.
static COUNTS: Mutex<BTreeMap<Arc<str>, Counts>> = Mutex::new(BTreeMap::new());

/// A number of things, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    count: u64,
    bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.merge(Tally { count: 1, bytes });
    }

    fn merge(&mut self, other: Tally) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// Launches of one kernel, with the bytes of their buffers.
#[derive(Clone, Copy, Debug, Default)]
struct Launches {
    all: Tally,
    /// Those of them whose largest buffer has one element.
    one_element: u64,
    /// Bytes of global memory that those which were executed accessed.
    accessed: u64,
}

/// Calls of one function of cuBLAS, cuDNN or cuRAND.
#[derive(Clone, Copy, Debug, Default)]
struct Library {
    calls: u64,
    flops: u64,
    bytes: u64,
}

/// Where a copy goes from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    HostToHost,
}

impl Direction {
    const ALL: [(Direction, &str); 4] = [
        (Direction::HostToDevice, "host_to_device"),
        (Direction::DeviceToHost, "device_to_host"),
        (Direction::DeviceToDevice, "device_to_device"),
        (Direction::HostToHost, "host_to_host"),
    ];

    /// Of a copy, by whether its two ends are a device's.
    pub fn new(from_device: bool, to_device: bool) -> Direction {
        match (from_device, to_device) {
            (false, true) => Direction::HostToDevice,
            (true, false) => Direction::DeviceToHost,
            (true, true) => Direction::DeviceToDevice,
            (false, false) => Direction::HostToHost,
        }
    }
}

/// All counts of one phase.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// Calls of libcuda, by function.
    calls: BTreeMap<&'static str, u64>,
    libraries: BTreeMap<&'static str, Library>,
    launches: BTreeMap<String, Launches>,
    /// Allocations and frees: of pools, and others.
    allocated: [Tally; 2],
    freed: [Tally; 2],
    /// Allocations that there was no memory for, of either kind.
    refused: Tally,
    memsets: Tally,
    copies: BTreeMap<Direction, Tally>,
    /// Copies at which the host waits for the device.
    blocking: Tally,
}

/// Whether anything is counted.
#[inline]
pub fn are_on() -> bool {
    match STATE.load(Relaxed) {
        UNKNOWN => ask(),
        state => state == ON,
    }
}

/// Reads the variable, at the first call of all.
#[cold]
fn ask() -> bool {
    let is_asked_for = std::env::var(VARIABLE).is_ok_and(|value| value == "1");
    let state = if is_asked_for { ON } else { OFF };
    // A program that has switched it meanwhile has the last word.
    _ = STATE.compare_exchange(UNKNOWN, state, Relaxed, Relaxed);
    STATE.load(Relaxed) == ON
}

fn lock() -> MutexGuard<'static, BTreeMap<Arc<str>, Counts>> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts in the present phase of this thread.
fn count(change: impl FnOnce(&mut Counts)) {
    if are_on() {
        let phase = marks::phase();
        change(lock().entry(phase).or_default());
    }
}

/// A launch of a kernel, with the bytes of the buffers among its arguments.
pub fn launch(kernel: &str, buffers: impl Iterator<Item = u64>) {
    /// The largest number type of PTX.
    const ELEMENT: u64 = 8;
    count(|counts| {
        let (mut bytes, mut largest) = (0, None);
        for buffer in buffers {
            bytes += buffer;
            largest = largest.max(Some(buffer));
        }
        if !counts.launches.contains_key(kernel) {
            counts
                .launches
                .insert(kernel.to_owned(), Launches::default());
        }
        if let Some(launches) = counts.launches.get_mut(kernel) {
            launches.all.add(bytes);
            let is_one = largest.is_some_and(|largest| largest <= ELEMENT);
            launches.one_element += u64::from(is_one);
        }
    });
}

/// The bytes that the execution of a launch that was counted accessed.
pub fn accessed(kernel: &str, bytes: u64) {
    count(|counts| {
        if let Some(launches) = counts.launches.get_mut(kernel) {
            launches.accessed += bytes;
        }
    });
}

/// The work of a library's function that is being called.
pub fn library(flops: u64, bytes: u64) {
    count(|counts| {
        let library = counts.libraries.entry(entered::function()).or_default();
        library.flops += flops;
        library.bytes += bytes;
    });
}

pub fn allocation(is_of_pool: bool, bytes: u64) {
    count(|counts| counts.allocated[usize::from(!is_of_pool)].add(bytes));
}

pub fn refused_allocation(bytes: u64) {
    count(|counts| counts.refused.add(bytes));
}

pub fn free(is_of_pool: bool, bytes: u64) {
    count(|counts| counts.freed[usize::from(!is_of_pool)].add(bytes));
}

pub fn memset(bytes: u64) {
    count(|counts| counts.memsets.add(bytes));
}

/// A copy; whether the host waits for the device by it.
pub fn copy(direction: Direction, bytes: u64, blocks: bool) {
    count(|counts| {
        counts.copies.entry(direction).or_default().add(bytes);
        if blocks {
            counts.blocking.add(bytes);
        }
    });
}

impl Counts {
    fn merge(&mut self, other: &Counts) {
        for (name, calls) in &other.calls {
            *self.calls.entry(name).or_default() += calls;
        }
        for (name, more) in &other.libraries {
            let library = self.libraries.entry(name).or_default();
            library.calls += more.calls;
            library.flops += more.flops;
            library.bytes += more.bytes;
        }
        for (name, more) in &other.launches {
            let launches = self.launches.entry(name.clone()).or_default();
            launches.all.merge(more.all);
            launches.one_element += more.one_element;
            launches.accessed += more.accessed;
        }
        for (direction, more) in &other.copies {
            self.copies.entry(*direction).or_default().merge(*more);
        }
        for kind in 0..2 {
            self.allocated[kind].merge(other.allocated[kind]);
            self.freed[kind].merge(other.freed[kind]);
        }
        self.refused.merge(other.refused);
        self.memsets.merge(other.memsets);
        self.blocking.merge(other.blocking);
    }
}
