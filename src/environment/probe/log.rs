use std::collections::BTreeMap;

use crate::environment::source::Source;
use crate::facts::{self, XidAction};

/// Messages of NVIDIA's kernel module about its GPUs.
#[derive(Debug, Clone)]
pub(in crate::environment) struct Log {
    /// What was read, or why nothing could be.
    pub(in crate::environment) read: Result<&'static str, String>,
    pub(in crate::environment) messages: Vec<Xid>,
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
                    return Self {
                        read: Ok(path),
                        messages: messages(&text),
                    };
                }
                Err(error) => reasons.push(format!("{path}: {error}")),
            }
        }
        Self {
            read: Err(reasons.join("; ")),
            messages: Vec::new(),
        }
    }
}

/// The longest part of a message that is shown, in characters.
const SHOWN: usize = 160;

fn messages(text: &str) -> Vec<Xid> {
    let mut found = BTreeMap::<(u32, String), Xid>::new();
    for line in text.lines() {
        let Some((address, number, rest)) = message(line) else {
            continue;
        };
        let entry = found
            .entry((number, address.to_owned()))
            .or_insert_with(|| Xid {
                number,
                address: address.to_owned(),
                count: 0,
                text: String::new(),
                action: None,
            });
        entry.count += 1;
        entry.text = rest.chars().take(SHOWN).collect();
        entry.action = facts::xid(number, rest);
    }
    found.into_values().collect()
}

/// «NVRM: Xid (PCI:0000:3b:00): 79, pid=…, GPU has fallen off the bus.» as address, number and the rest.
fn message(line: &str) -> Option<(&str, u32, &str)> {
    let (_, rest) = line.split_once("NVRM: Xid (")?;
    let (address, rest) = rest.split_once("): ")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let number = rest[..digits].parse().ok()?;
    let address = address.trim_start_matches("PCI:");
    Some((
        address,
        number,
        rest[digits..].trim_start_matches([',', ' ']),
    ))
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
        let found = messages(log);
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
}
