//! The counts as JSON, and the functions by which a program switches, reads and resets them.

use std::ffi::{CStr, c_char};
use std::fmt::Write as _;

use super::*;
use crate::driver::device_query::store_text;
use crate::report::quoted;

/// Calls that cudarc makes before every other one, and that cost next to nothing: they are left out of the number of calls.
const CONTEXT: [&str; 2] = ["cuCtxGetCurrent", "cuCtxSetCurrent"];

/// Uses of events, and the functions that make them.
const EVENTS: [(&str, &[&str]); 6] = [
    ("created", &["cuEventCreate"]),
    ("destroyed", &["cuEventDestroy_v2"]),
    ("recorded", &["cuEventRecord", "cuEventRecordWithFlags"]),
    ("waited_for", &["cuStreamWaitEvent"]),
    ("queried", &["cuEventQuery"]),
    ("timed", &["cuEventElapsedTime", "cuEventElapsedTime_v2"]),
];

/// The functions by which the host waits for a device.
const SYNCHRONIZING: [&str; 3] = [
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuCtxSynchronize",
];

/// An object of JSON.
#[derive(Default)]
struct Object(String);

impl Object {
    fn with(mut self, name: &str, value: impl std::fmt::Display) -> Object {
        let comma = if self.0.is_empty() { "" } else { "," };
        _ = write!(self.0, "{comma}{}:{value}", quoted(name));
        self
    }

    fn text(self) -> String {
        format!("{{{}}}", self.0)
    }
}

impl FromIterator<(String, String)> for Object {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(members: I) -> Object {
        let members = members.into_iter();
        members.fold(Object::default(), |object, (name, value)| {
            object.with(&name, value)
        })
    }
}

impl Tally {
    fn json(self) -> String {
        let Tally { count, bytes } = self;
        Object::default()
            .with("count", count)
            .with("bytes", bytes)
            .text()
    }
}

impl Launches {
    fn object(self) -> Object {
        let Tally { count, bytes } = self.all;
        let object = Object::default().with("count", count).with("bytes", bytes);
        object.with("one_element", self.one_element)
    }
}

impl Counts {
    fn calls_of(&self, functions: &[&str]) -> u64 {
        let calls = functions.iter().filter_map(|name| self.calls.get(name));
        calls.sum()
    }

    fn calls(&self) -> String {
        let functions = self
            .calls
            .iter()
            .map(|(name, calls)| (name.to_string(), calls.to_string()));
        let functions: Object = functions.collect();
        let context = self.calls_of(&CONTEXT);
        let count = self.calls.values().sum::<u64>() - context;
        Object::default()
            .with("count", count)
            .with("context", context)
            .with("functions", functions.text())
            .text()
    }

    fn launches(&self) -> String {
        let mut sum = Launches::default();
        for launches in self.launches.values() {
            sum.all.merge(launches.all);
            sum.one_element += launches.one_element;
        }
        let kernels = self.launches.iter();
        let kernels = kernels.map(|(name, launches)| (name.clone(), launches.object().text()));
        sum.object()
            .with("kernels", kernels.collect::<Object>().text())
            .text()
    }

    fn libraries(&self) -> String {
        let functions = self.libraries.iter().map(|(name, library)| {
            let Library {
                calls,
                flops,
                bytes,
            } = library;
            let object = Object::default().with("calls", calls).with("flops", flops);
            (name.to_string(), object.with("bytes", bytes).text())
        });
        functions.collect::<Object>().text()
    }

    fn synchronizations(&self) -> String {
        let count = self.calls_of(&SYNCHRONIZING) + self.blocking.count;
        let mut object = Object::default().with("count", count);
        for function in SYNCHRONIZING {
            object = object.with(function, self.calls_of(&[function]));
        }
        object.with("blocking_copies", self.blocking.count).text()
    }

    fn json(&self) -> String {
        let [pool, direct] = self.allocated.map(Tally::json);
        let allocations = Object::default().with("pool", pool).with("direct", direct);
        let [pool, direct] = self.freed.map(Tally::json);
        let frees = Object::default().with("pool", pool).with("direct", direct);
        let copies = Direction::ALL.iter().map(|(direction, name)| {
            let tally = self.copies.get(direction).copied().unwrap_or_default();
            (name.to_string(), tally.json())
        });
        let events = EVENTS
            .iter()
            .map(|(name, functions)| (name.to_string(), self.calls_of(functions).to_string()));
        Object::default()
            .with("launches", self.launches())
            .with("libraries", self.libraries())
            .with("calls", self.calls())
            .with(
                "allocations",
                allocations.with("refused", self.refused.json()).text(),
            )
            .with("frees", frees.text())
            .with("memsets", self.memsets.json())
            .with("copies", copies.collect::<Object>().text())
            .with("events", events.collect::<Object>().text())
            .with("synchronizations", self.synchronizations())
            .text()
    }
}

/// All counts: their sum, and each phase's.
pub fn json() -> String {
    let phases = lock().clone();
    let mut all = Counts::default();
    phases.values().for_each(|counts| all.merge(counts));
    let phases: Object = phases
        .iter()
        .map(|(phase, counts)| (phase.to_string(), counts.json()))
        .collect();
    Object::default()
        .with("all", all.json())
        .with("phases", phases.text())
        .text()
}

/// Switches counting on or off. What was counted stays.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_set_counts(on: bool) -> i32 {
    STATE.store(if on { ON } else { OFF }, Relaxed);
    0
}

/// Forgets what was counted.
#[unsafe(no_mangle)]
pub extern "C" fn simulated_cuda_counts_reset() -> i32 {
    lock().clear();
    0
}

/// Copies the counts, as JSON, into a buffer, truncated to its size and with a final zero byte, and returns the size that the whole text needs.
/// With a null buffer it only returns the size.
///
/// # Safety
/// `to` is null or has room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_cuda_counts(to: *mut c_char, room: usize) -> usize {
    let text = json();
    // SAFETY: by contract. Declined places are no error.
    let _ = unsafe { store_text(to, room, &text) };
    text.len() + 1
}

/// Bytes of global memory that launches of the kernel of this name accessed: loads, stores and atomic operations, each as often as it was executed.
/// Launches that were not executed count nothing, and of a large one that was executed in part its sample.
///
/// # Safety
/// `kernel` is a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_cuda_accessed(kernel: *const c_char) -> u64 {
    // SAFETY: by contract.
    let kernel = unsafe { CStr::from_ptr(kernel) }.to_string_lossy();
    let phases = lock();
    let launches = phases.values().filter_map(|of| of.launches.get(&*kernel));
    launches.map(|launches| launches.accessed).sum()
}
