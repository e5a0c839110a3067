//! What a program did on its devices, where `SIMULATED_CUDA_REPORT` names a file: lines of JSON, of which each process appends one for each device
//! that it allocated on when it exits, and one for each problem when it meets it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{MutexGuard, Once};
use std::time::Duration;

use crate::counts;
use crate::device::Device;
use crate::device::account::{Account, Pieces, ReadBack};
use crate::marks::{Here, Place, places};
use crate::simulator;

/// The file.
const FILE: &str = "SIMULATED_CUDA_REPORT";
/// After so many seconds the program is ended, with what it has done until then in the report.
const SECONDS: &str = "SIMULATED_CUDA_SECONDS";
/// The status with which it is ended, as that of the program `timeout`.
const OUT_OF_TIME: i32 = 124;

/// The process that uses the devices.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Whether this process is a copy of that one, made by `fork`. It has none of the driver's state, as with a real one.
static IN_FORK: AtomicBool = AtomicBool::new(false);

fn file() -> Option<OsString> {
    std::env::var_os(FILE)
}

/// Whether a report is asked for.
pub fn is_wanted() -> bool {
    file().is_some()
}

/// Has the report written at the program's exit, if one is asked for.
pub fn promise() {
    PROCESS.store(std::process::id(), Relaxed);
    extern "C" fn forked() {
        IN_FORK.store(true, Relaxed);
    }
    // SAFETY: the function does nothing but to store a flag.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    if !is_wanted() {
        return;
    }
    append(&format!("{{\"began\":{}}}\n", std::process::id()));
    // SAFETY: `write` needs nothing that the program's exit has destroyed: devices are never dropped.
    unsafe { libc::atexit(write) };
    let seconds = std::env::var(SECONDS)
        .ok()
        .and_then(|text| text.parse().ok());
    if let Some(limit) = seconds.map(Duration::from_secs) {
        std::thread::spawn(move || {
            std::thread::sleep(limit);
            problem(
                "time",
                &format!("it did not end within {} s", limit.as_secs()),
            );
            write();
            // SAFETY: the process ends without the destructors of other threads' state.
            unsafe { libc::_exit(OUT_OF_TIME) };
        });
    }
}

/// Whether this process was forked from the one that uses the devices, which the first such call reports.
pub fn in_fork() -> bool {
    static ONCE: Once = Once::new();
    if !IN_FORK.load(Relaxed) {
        return false;
    }
    let what = "a process that was forked after the driver was initialized called it: a fork inherits no device";
    ONCE.call_once(|| problem("forked", what));
    true
}

/// Reports a problem at once.
pub fn problem(kind: &str, what: &str) {
    let process = std::process::id();
    append(&format!(
        "{{\"process\":{process},\"problem\":{},\"what\":{}}}\n",
        quoted(kind),
        quoted(what)
    ));
}

fn append(lines: &str) {
    let Some(file) = file() else { return };
    let opened = OpenOptions::new().create(true).append(true).open(&file);
    // In one call, so that the lines of several processes do not mix.
    if let Err(error) = opened.and_then(|mut opened| opened.write_all(lines.as_bytes())) {
        eprintln!("simulated CUDA: {}: {error}", file.display());
    }
}

extern "C" fn write() {
    if PROCESS.load(Relaxed) != std::process::id() {
        return;
    }
    if let Some(other) = other_driver() {
        problem("other driver", &other.display().to_string());
    }
    let mut lines = String::new();
    for number in 0..simulator::count() {
        // The program may be ended by a call that has a device locked.
        if let Some(device) = patiently(number)
            && let Some(account) = &device.account
            && device.counted.allocations > 0
        {
            lines.push_str(&line(&device, account));
            lines.push('\n');
        }
    }
    if counts::are_on() {
        let process = std::process::id();
        _ = writeln!(
            lines,
            "{{\"process\":{process},\"counts\":{}}}",
            counts::json()
        );
    }
    _ = writeln!(lines, "{{\"ended\":{}}}", std::process::id());
    append(&lines);
}

/// Locks a device, unless a call has it locked for long.
fn patiently(number: usize) -> Option<MutexGuard<'static, Device>> {
    for _ in 0..1000 {
        if let Some(device) = simulator::try_lock(number) {
            return Some(device);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    problem(
        "busy",
        "a call had the device locked when the program ended",
    );
    None
}

/// Another libcuda in this process.
fn other_driver() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let here = write as *const () as u64;
    let files = maps.lines().filter_map(|line| {
        let (addresses, _) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        let file = Path::new(&line[line.find('/')?..]);
        Some((address(start)?..address(end)?, file))
    });
    let files: Vec<_> = files.collect();
    let own = files.iter().find(|(range, _)| range.contains(&here))?.1;
    let is_driver = |file: &Path| {
        let name = file.file_name().unwrap_or_default();
        name.as_bytes().starts_with(b"libcuda.so")
    };
    let other = files
        .iter()
        .find(|(_, file)| is_driver(file) && *file != own);
    other.map(|(_, file)| file.to_path_buf())
}

/// A text as JSON has it.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control < ' ' => _ = write!(quoted, "\\u{:04x}", control as u32),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Values of JSON, as a list.
fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(","))
}

fn line(device: &Device, account: &Account) -> String {
    let places = places();
    let place = |number: usize| {
        let Place { phase, layers } = places.get(number).cloned().unwrap_or_default();
        format!(
            "\"phase\":{},\"layers\":{}",
            quoted(&phase),
            quoted(&layers)
        )
    };
    let here = |here: &Here| {
        let work = here.work.as_ref().map_or("", |work| &work.name);
        format!("\"work\":{},{}", quoted(work), place(here.place))
    };
    let counted = device.counters();
    let numbers = [
        ("process", u64::from(std::process::id())),
        ("device", device.ordinal as u64),
        ("capacity_bytes", counted.device_capacity),
        ("peak_tensor_bytes", counted.peak_live_bytes),
        ("peak_block_bytes", account.peak_blocks),
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
    let held = account.held_at_peak.iter().enumerate();
    let held = held.filter(|(_, bytes)| **bytes > 0);
    let held = held.map(|(number, bytes)| format!("{{{},\"bytes\":{bytes}}}", place(number)));
    let refused = account
        .refused
        .as_ref()
        .map_or("null".to_owned(), |refused| {
            format!(
                "{{{},\"bytes\":{},\"held_bytes\":{},\"by_limit\":{},\"allocations_since\":{}}}",
                here(&refused.here),
                refused.bytes,
                refused.held,
                refused.by_limit,
                refused.since
            )
        });
    let pieces = account.pieces().into_iter().map(|(samples, pieces)| {
        let Pieces { count, refused, peak, before, could_save } = pieces;
        format!(
            "{{\"samples\":{samples},\"count\":{count},\"refused\":{refused},\"peak_bytes\":{peak},\"before_bytes\":{before},\
             \"could_save_bytes\":{could_save}}}"
        )
    });
    let read = account.read_back.iter().map(|(&number, read)| {
        let ReadBack { copies, bytes } = read;
        format!(
            "{{{},\"copies\":{copies},\"bytes\":{bytes}}}",
            place(number)
        )
    });
    format!(
        "{{\"computes\":{},\"samples\":{},{},\"peak\":{{{},\"held\":{}}},\"refused\":{refused},\"pieces\":{},\"read_back\":{},\
         \"line\":{{\"stride\":{},\"bytes\":{}}},\"digest\":\"{:016x}\"}}",
        device.computes,
        device.samples,
        numbers.join(","),
        here(&account.peak_here),
        list(held),
        list(pieces),
        list(read),
        account.line.stride,
        list(account.line.points.iter().map(u64::to_string)),
        account.digest.0,
    )
}
