//! docs/environment.md says what the code says.

use candle_headroom::FindingCode;

const DOCUMENT: &str = include_str!("../../docs/environment.md");

#[test]
fn every_code_is_documented_as_it_is() {
    for code in FindingCode::all() {
        let row = format!("| `{}` | {} | {} |", code.id, code.severity, code.title);
        assert!(DOCUMENT.contains(&row), "missing: {row}");
    }
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `HR-"));
    assert_eq!(rows.count(), FindingCode::all().len());
}
