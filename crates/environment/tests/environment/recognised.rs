use std::collections::BTreeSet;

use candle_headroom_environment::FindingCode;

use crate::machine::codes;
use crate::symptoms::SYMPTOMS;

#[test]
fn every_symptom_leads_to_its_code() {
    for symptom in SYMPTOMS.iter() {
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

/// Codes that no machine in a folder can show, or that belong to machines in order, each with the file of its test.
const ELSEWHERE: [(&str, &str); 31] = [
    ("HR-001", include_str!("library.rs")),
    ("HR-002", include_str!("hanging.rs")),
    ("HR-100", HEALTHY),
    ("HR-114", HEALTHY),
    ("HR-200", HEALTHY),
    ("HR-300", HEALTHY),
    ("HR-400", HEALTHY),
    ("HR-500", HEALTHY),
    ("HR-600", HEALTHY),
    ("HR-700", HEALTHY),
    ("HR-800", HEALTHY),
    // Only candle's own kernels come with machine code.
    ("HR-311", include_str!("../../src/judge/driver.rs")),
    ("HR-312", FITNESS),
    ("HR-402", include_str!("golden/no_gpu.txt")),
    ("HR-810", RANKS),
    ("HR-820", RANKS),
    ("HR-824", RANKS),
    ("HR-831", RANKS),
    ("HR-840", RANKS),
    ("HR-860", RANKS),
    ("HR-861", RANKS),
    ("HR-862", RANKS),
    ("HR-863", RANKS),
    ("HR-864", RANKS),
    ("HR-913", RANKS),
    ("HR-900", FITNESS),
    ("HR-901", FITNESS),
    ("HR-902", FITNESS),
    ("HR-910", FITNESS),
    ("HR-911", FITNESS),
    ("HR-912", FITNESS),
];
const HEALTHY: &str = include_str!("healthy.rs");
const RANKS: &str = include_str!("ranks.rs");
const FITNESS: &str = include_str!("fitness.rs");

#[test]
fn every_code_is_produced_by_a_test() {
    let by_symptoms: BTreeSet<_> = SYMPTOMS.iter().map(|symptom| symptom.code).collect();
    for (code, file) in ELSEWHERE {
        assert!(file.contains(code), "{code} is not in its file");
        assert!(!by_symptoms.contains(code), "{code} has a symptom");
    }
    let elsewhere = ELSEWHERE.map(|(code, _)| code);
    for code in FindingCode::all() {
        let is_produced = by_symptoms.contains(code.id) || elsewhere.contains(&code.id);
        assert!(is_produced, "{} is never produced", code.id);
    }
}
