//! What the book says about the environment checker matches the code.

use candle_headroom_environment::{FindingCode, Severity};

use crate::conditions::{CHECKERS, conditions, covered};

const CODES: &str = include_str!("../../../../docs/reference/environment-codes.md");
const COMPARISON: &str = include_str!("../../../../docs/reference/comparison.md");

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
        assert!(CODES.lines().any(|line| line == row), "missing: {row}");
    }
    let rows = CODES.lines().filter(|line| line.starts_with("| `HR-"));
    assert_eq!(rows.count(), FindingCode::all().len());
}

#[test]
fn codes_are_well_formed_and_in_order() {
    let codes = FindingCode::all();
    assert!(codes.windows(2).all(|pair| pair[0].id < pair[1].id));
    for code in codes {
        let number = code.id.strip_prefix("HR-").unwrap();
        assert!(number.len() == 3 && number.parse::<u16>().is_ok());
        assert!(!code.title.is_empty() && !code.title.ends_with('.'));
        let has_texts = !code.leads_to.is_empty() && !code.next_step.is_empty();
        let has_texts_elsewhere = ["HR-202", "HR-307", "HR-901"].contains(&code.id);
        assert!(
            code.severity < Severity::Warning || has_texts || has_texts_elsewhere,
            "{}",
            code.id
        );
    }
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
    assert!(COMPARISON.contains(&row), "missing: {row}");
}
