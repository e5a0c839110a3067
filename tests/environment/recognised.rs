use std::collections::BTreeSet;

use candle_headroom::{FindingCode, Severity};

use crate::machine::{Machine, codes};
use crate::symptoms::SYMPTOMS;

#[test]
fn every_symptom_leads_to_its_code() {
    for symptom in SYMPTOMS {
        let report = (symptom.machine)().check();
        let found = codes(&report);
        assert!(
            found.contains(&symptom.code),
            "{}: {found:?}\n{report}",
            symptom.what
        );
        let finding = report
            .findings()
            .iter()
            .find(|finding| finding.code.id == symptom.code);
        assert!(
            finding.is_some_and(|finding| !finding.seen.is_empty()),
            "{}",
            symptom.what
        );
    }
    println!(
        "figure: doctor/symptoms_tested = {} symptoms",
        SYMPTOMS.len()
    );
}

#[test]
fn a_healthy_machine_shows_none_of_them() {
    let report = Machine::healthy().check();
    assert!(report.worst() <= Severity::Note, "{report}");
    let expected = [
        "HR-100", "HR-114", "HR-200", "HR-300", "HR-400", "HR-500", "HR-600", "HR-700", "HR-800",
    ];
    let mut found = codes(&report);
    // A build with `cuda` has kernels of its own to judge.
    found.retain(|code| *code != "HR-312");
    assert_eq!(found, expected, "{report}");
}

/// Codes that no machine in a folder can show: each is produced elsewhere, as named.
const ELSEWHERE: [&str; 20] = [
    "HR-001", // library.rs: a library that hangs
    "HR-002", // timed.rs: a probe that panics
    "HR-100", "HR-114", "HR-200", "HR-300", "HR-400", "HR-500", "HR-600", "HR-700",
    "HR-800", // a healthy machine
    "HR-311", // judge/kernels.rs, a test of its own: only candle's kernels come with machine code
    "HR-312", // fitness.rs
    "HR-402", // golden: no GPU
    "HR-900", "HR-901", "HR-902", // the smoke test
    "HR-910", "HR-911", "HR-912", // fitness.rs
];

#[test]
fn every_code_is_produced_by_a_test() {
    let produced: BTreeSet<_> = SYMPTOMS
        .iter()
        .map(|symptom| symptom.code)
        .chain(ELSEWHERE)
        .collect();
    for code in FindingCode::all() {
        assert!(produced.contains(code.id), "{} is never produced", code.id);
    }
}
