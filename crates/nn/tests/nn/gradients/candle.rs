//! candle-core's operations, of which some are known to be wrong: see `tests/support/candle_operations/known.rs`.

use candle_core::{DType, Device};

use crate::candle_operations::{Verdict, cases, changes, judge, known};

/// Fails where a candle mends or breaks an operation.
#[test]
fn the_known_ones_are_wrong_and_no_others() {
    let judged = cases().into_iter().map(|case| {
        let judged = judge(&case, &Device::Cpu, DType::F64);
        (case.name, judged)
    });
    let judged: Vec<_> = judged.collect();
    let figure =
        |name: &str, count| println!("figure: gradients/candle_cases{name} = {count} cases");
    figure("", judged.len());
    for (name, verdict) in [
        ("_wrong", Verdict::Wrong),
        ("_failing", Verdict::Failing),
        ("_refused", Verdict::Refused),
    ] {
        let of_verdict = judged
            .iter()
            .filter(|(_, judged)| judged.verdict == verdict);
        figure(name, of_verdict.count());
    }
    let changes = changes(&judged, known);
    assert!(changes.is_empty(), "{}", changes.join("\n"));
}

#[test]
fn each_case_has_a_name_of_its_own() {
    let mut names: Vec<_> = cases().into_iter().map(|case| case.name).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}
