use std::collections::{BTreeMap, BTreeSet};

use regex_lite::Regex;

use super::{Findings, Source, code};
use crate::facts::{self, XidAction};

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
pub(super) fn look(source: &Source) -> Findings {
    let mut findings = Findings::default();
    let mut reasons = Vec::new();
    for path in LOGS {
        match source.log(path) {
            Ok(text) => {
                judge(path, &text, &mut findings);
                return findings;
            }
            Err(error) => reasons.push(format!("{path}: {error}")),
        }
    }
    findings.add(code::LOG_UNREADABLE, reasons.join("; "));
    findings
}

fn judge(path: &str, log: &str, findings: &mut Findings) {
    let pattern = Regex::new(MESSAGE);
    let lines = log.lines().filter(|line| line.contains(MARK));
    let messages = lines.filter_map(|line| pattern.as_ref().ok()?.captures(line));
    let messages: Vec<_> = messages.map(|found| found.extract().1).collect();
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
