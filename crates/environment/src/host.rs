//! The host's memory, and what the kernel's log says of GPUs.

use std::collections::{BTreeMap, BTreeSet};

use bytesize::ByteSize;
use regex_lite::Regex;

use super::{Facts, Findings, Source, code};
use crate::facts::{self, XidAction};
use crate::system::SystemMemory;

/// Less than this share of the memory is little.
const LITTLE: f64 = 0.05;
/// With more than this share free, swap in use does no harm.
const PLENTY: f64 = 0.2;
/// Docker's default for `/dev/shm` is 64 MiB.
const SMALL_SHM: u64 = 1 << 30;

/// The host's memory, the bytes that `/dev/shm` may hold, if it is mounted with a size, and those that are free in it.
pub(super) fn look(source: &Source) -> (SystemMemory, Option<u64>, Option<u64>, Findings) {
    let memory = SystemMemory::read_by(|path| source.text(path));
    let mut findings = Findings::default();
    match memory.capacity().zip(memory.free()) {
        Some((total, free)) => describe(source, memory, total, free, &mut findings),
        None => findings.add(code::HOST_UNKNOWN, "/proc/meminfo does not contain it"),
    }
    let shm = source.text("/proc/mounts").as_deref().and_then(shm);
    (memory, shm, shm_free(source), findings)
}

/// Only programs for a GPU need shared memory. Where several ranks are intended, it is a finding of its own.
pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let small = |bytes: &u64| *bytes < SMALL_SHM;
    let size = facts.shm.filter(small);
    if facts.has_ranks() {
        // Files of ranks that were killed stay in it.
        let free = facts.shm_free.filter(small);
        let free = free.map(|free| format!("{} free", ByteSize(free)));
        let size = size.map(|size| format!("{} in size", ByteSize(size)));
        let seen = size.into_iter().chain(free);
        return findings.list(code::SHM_TOO_SMALL, seen);
    }
    if let Some(shm) = size.filter(|_| facts.shows_gpu()) {
        findings.add(code::SHM_SMALL, ByteSize(shm).to_string());
    }
}

fn describe(source: &Source, memory: SystemMemory, total: u64, free: u64, findings: &mut Findings) {
    let is_below = |share: f64| (free as f64) < share * total as f64;
    let system = source.line("/proc/sys/kernel/osrelease");
    let system = system.map_or("unknown system".to_owned(), |name| format!("Linux {name}"));
    let processors = source.text("/proc/cpuinfo").unwrap_or_default();
    let mut lines = processors.lines();
    let model = lines.find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map(|(_, name)| format!(" ({})", name.trim()));
    let model = model.unwrap_or_default();
    let is_processor = |line: &&str| line.starts_with("processor");
    let count = processors.lines().filter(is_processor).count();
    let free = format!("{} free of {}", ByteSize(free), ByteSize(total));
    let seen = format!("{system}, processors: {count}{model}, {free}");
    findings.add(code::HOST, seen);
    let machine = memory.total.unwrap_or(u64::MAX);
    if let Some(limit) = memory.cgroup_limit.filter(|limit| *limit < machine) {
        let seen = format!("{} of the machine's {}", ByteSize(limit), ByteSize(machine));
        findings.add(code::CGROUP_LIMIT, seen);
    }
    if is_below(LITTLE) {
        findings.add(code::LOW_MEMORY, free);
    }
    let info = source.text("/proc/meminfo").unwrap_or_default();
    let swap = |key| SystemMemory::meminfo(&info, key);
    if let (Some(swap), Some(left)) = (swap("SwapTotal:"), swap("SwapFree:")) {
        let used = swap.saturating_sub(left);
        if used > swap / 2 && is_below(PLENTY) {
            let seen = format!("{} of {} swap in use", ByteSize(used), ByteSize(swap));
            findings.add(code::SWAPPING, seen);
        }
    }
}

/// The size among the options of a mount, such as `shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0`.
fn shm(mounts: &str) -> Option<u64> {
    let pattern = " /dev/shm [a-z]+ (?:[!-~]+,)?size=([0-9]+)(k?)[, ]";
    let found = Regex::new(pattern).ok()?.captures(mounts)?;
    let (_, [size, kib]) = found.extract();
    let unit = if kib.is_empty() { 1 } else { 1024 };
    size.parse::<u64>().ok()?.checked_mul(unit)
}

/// The free bytes in `/dev/shm`, on the machine itself.
#[cfg(unix)]
fn shm_free(source: &Source) -> Option<u64> {
    let on_machine = Some("/dev/shm").filter(|_| source.is_this_machine());
    let system = rustix::fs::statvfs(on_machine?).ok()?;
    system.f_bavail.checked_mul(system.f_frsize)
}

#[cfg(not(unix))]
fn shm_free(_source: &Source) -> Option<u64> {
    None
}

/// The kernel's own log, which begins with this boot, and the files that systems write it to.
const LOGS: [&str; 4] = [
    "/dev/kmsg",
    "/var/log/kern.log",
    "/var/log/messages",
    "/var/log/syslog",
];

/// A message's address, number and text. Programs can write to the log, and the address goes into a command that may run as root.
const MESSAGE: &str = r"NVRM: Xid \((?:PCI:)?([[:xdigit:]:.]{1,16})\): ([0-9]+)[, ]*(.*)";
/// What each has. Looking for it first is fast, and the pattern is not.
const MARK: &str = "NVRM: Xid (";

/// The characters of a message that are shown.
const SHOWN: usize = 160;

/// The kinds of messages that are reported: more than GPUs cause, but programs can write to the log.
const MOST_KINDS: usize = 64;

/// Finds messages of NVIDIA's kernel module about its GPUs (Xid) in the first log that can be read.
pub(super) fn kernel_log(source: &Source) -> Findings {
    let mut findings = Findings::default();
    let mut reasons = Vec::new();
    for path in LOGS {
        match source.log(path) {
            Ok(text) => {
                messages(path, &text, &mut findings);
                return findings;
            }
            Err(error) => reasons.push(format!("{path}: {error}")),
        }
    }
    findings.add(code::LOG_UNREADABLE, reasons.join("; "));
    findings
}

fn messages(path: &str, log: &str, findings: &mut Findings) {
    let pattern = Regex::new(MESSAGE);
    let lines = log.lines().filter(|line| line.contains(MARK));
    let found = lines.filter_map(|line| pattern.as_ref().ok()?.captures(line));
    let messages: Vec<_> = found.map(|found| found.extract().1).collect();
    // The newest text of each number and address, and how often they occur.
    let mut kinds = BTreeMap::<(u32, &str), (&str, usize)>::new();
    let mut more = BTreeSet::new();
    for [address, number, text] in messages.into_iter().rev() {
        let Ok(number) = number.parse() else { continue };
        let kind = (number, address);
        if kinds.len() == MOST_KINDS && !kinds.contains_key(&kind) {
            more.insert(kind);
        } else {
            kinds.entry(kind).or_insert((text, 0)).1 += 1;
        }
    }
    // Files go back further than the last start.
    let since = match path {
        "/dev/kmsg" => "since the last start",
        _ => "perhaps before the last start",
    };
    for ((number, address), (text, count)) in &kinds {
        let times = match count {
            1 => String::new(),
            count => format!(", {count} times"),
        };
        let shown: String = text.chars().take(SHOWN).collect();
        let seen = format!("Xid {number} of {address}{times}, {since} ({path}): {shown}");
        match facts::xid(*number, text) {
            XidAction::Nothing => findings.add(code::XID_OTHER, seen),
            XidAction::RestartApplication => findings.add(code::XID_APPLICATION, seen),
            XidAction::Repair(next_step, command) => {
                let finding = findings.begin(code::XID_HARDWARE, seen);
                finding.next_step = next_step.into();
                finding.command = command.replace(" -i N", &format!(" -i {address}")).into();
            }
        }
    }
    if kinds.is_empty() {
        findings.add(code::LOG_CLEAN, path);
    }
    if !more.is_empty() {
        let seen = format!("{} further kinds of older messages ({path})", more.len());
        findings.add(code::XID_OTHER, seen);
    }
}
