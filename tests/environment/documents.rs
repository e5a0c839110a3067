//! docs/environment.md and docs/conditions.tsv say what the code says.

use candle_headroom::environment::FindingCode;

use crate::conditions::{CHECKERS, conditions, covered};

const DOCUMENT: &str = include_str!("../../docs/environment.md");

#[test]
fn every_code_is_documented_as_it_is() {
    let table = |text: &str| match text {
        "" => "–".to_owned(),
        text => text.replace('|', "\\|"),
    };
    for code in FindingCode::all() {
        let cuda = if code.prevents_cuda { "yes" } else { "" };
        let command = match code.command {
            "" => String::new(),
            command => format!("<br>`{}`", table(command)),
        };
        let row = format!(
            "| `{}` | {} | {} | {cuda} | {} | {}{command} |",
            code.id,
            code.severity,
            code.title,
            table(code.leads_to),
            table(code.next_step)
        );
        assert!(DOCUMENT.lines().any(|line| line == row), "missing: {row}");
    }
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `HR-"));
    assert_eq!(rows.count(), FindingCode::all().len());
}

#[test]
fn the_comparison_is_counted_and_names_codes_that_exist() {
    for (condition, says) in conditions() {
        assert_eq!(says.len(), CHECKERS.len(), "{condition}");
        for code in says[0].split(' ').filter(|code| *code != "-") {
            assert!(
                FindingCode::all().iter().any(|known| known.id == code),
                "{condition}: {code}"
            );
        }
        assert!(
            says[1..].iter().all(|says| ["x", "-"].contains(says)),
            "{condition}"
        );
    }
    let counts: Vec<_> = covered()
        .iter()
        .map(|(_, count)| count.to_string())
        .collect();
    let row = format!(
        "| of {} conditions | {} |",
        conditions().len(),
        counts.join(" | ")
    );
    assert!(DOCUMENT.contains(&row), "missing: {row}");
}
