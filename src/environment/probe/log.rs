use std::collections::{BTreeMap, BTreeSet};

use crate::environment::source::Source;
use crate::facts::{self, XidAction};

/// Messages of NVIDIA's kernel module about its GPUs.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    /// The file that was read.
    pub(crate) path: &'static str,
    pub(crate) messages: Vec<Xid>,
    /// The number of further, older kinds of messages.
    pub(crate) more: usize,
}

/// All messages of one number about one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xid {
    pub(crate) number: u32,
    /// The GPU's PCI address, as the log writes it.
    pub(crate) address: String,
    pub(crate) count: usize,
    /// The text of the last one.
    pub(crate) text: String,
    pub(crate) action: Option<XidAction>,
}

/// The kernel's own log, which begins with this boot, and the files that systems write it to.
const LOGS: [&str; 4] = [
    "/dev/kmsg",
    "/var/log/kern.log",
    "/var/log/messages",
    "/var/log/syslog",
];

impl Log {
    /// Reads the first log that can be read; the error says why none can.
    pub(crate) fn look(source: &Source) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for path in LOGS {
            match source.log(path) {
                Ok(text) => return Ok(messages(path, &text)),
                Err(error) => reasons.push(format!("{path}: {error}")),
            }
        }
        Err(reasons.join("; "))
    }
}

/// The characters of a message that are shown.
const SHOWN: usize = 160;

/// The kinds of messages that are reported: more than GPUs cause, but programs can write to the log.
const MOST_KINDS: usize = 64;

fn messages(path: &'static str, text: &str) -> Log {
    let mut found = BTreeMap::<(u32, &str), Xid>::new();
    let mut more = BTreeSet::new();
    for (address, number, rest) in text.lines().rev().filter_map(message) {
        let key = (number, address);
        if let Some(known) = found.get_mut(&key) {
            known.count += 1;
        } else if found.len() == MOST_KINDS {
            more.insert(key);
        } else {
            let xid = Xid {
                number,
                address: address.to_owned(),
                count: 1,
                text: rest.chars().take(SHOWN).collect(),
                action: facts::xid(number, rest),
            };
            found.insert(key, xid);
        }
    }
    Log {
        path,
        messages: found.into_values().collect(),
        more: more.len(),
    }
}

/// Address, number and rest of a line such as `NVRM: Xid (PCI:0000:3b:00): 79, pid=…, GPU has fallen off the bus.` The address goes into
/// a command that a user may run as root, and programs can write to the log, so anything that is not an address is ignored.
fn message(line: &str) -> Option<(&str, u32, &str)> {
    let (_, rest) = line.split_once("NVRM: Xid (")?;
    let (address, rest) = rest.split_once("): ")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let number = rest[..digits].parse().ok()?;
    let address = address.trim_start_matches("PCI:");
    let is_address = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    (!address.is_empty() && address.len() <= 16 && address.chars().all(is_address)).then(|| {
        let rest = rest[digits..].trim_start_matches([',', ' ']);
        (address, number, rest)
    })
}
