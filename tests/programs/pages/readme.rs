//! README: the five things that the library is for stand first, and its code is that of the examples.

use regex::Regex;

use super::page::{Page, read};

/// What stands above the fold: the words, the types, and the example that has the code.
const FIVE: [(&str, &[&str], &str); 5] = [
    (
        "typed out-of-memory error",
        &["ResourceExhausted"],
        "errors",
    ),
    (
        "memory growth, and a limit",
        &["DeviceMemory", "Growth", "TrackingAllocator"],
        "memory_growth",
    ),
    (
        "gradient accumulation",
        &["AccumulatingTrainer", "GradientAccumulator"],
        "accumulate",
    ),
    (
        "batches that adapt",
        &["AdaptiveTrainer", "Predictive"],
        "adaptive",
    ),
    ("whether a machine is fit", &["Environment"], "environment"),
];
/// Words outside code and output.
const MOST_WORDS: usize = 600;

fn readme() -> Page {
    let (path, text) = ("README".to_owned(), read("README.md"));
    Page { path, text }
}

fn without_spaces(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

#[test]
fn the_five_things_stand_first() {
    let readme = readme();
    let (first, _) = readme.text.split_once("\nAround these:").unwrap();
    let rows: Vec<&str> = first.split("<tr>").skip(2).collect();
    assert_eq!(rows.len(), FIVE.len());
    for (row, (words, types, example)) in rows.iter().zip(FIVE) {
        assert!(row.contains(words), "{words}: {row}");
        for name in types {
            assert!(
                row.contains(&format!("<code>{name}</code>")),
                "{name}: {row}"
            );
        }
        let code = row.split("```").nth(1).unwrap();
        let lines: Vec<&str> = code.lines().skip(1).collect();
        assert_eq!(lines.len(), 3, "{words}");
        let example = without_spaces(&read(format!("examples/{example}.rs")));
        for line in lines {
            assert!(example.contains(&without_spaces(line)), "{words}: {line}");
        }
    }
}

#[test]
fn the_difference_leads_to_an_example() {
    let example = read("examples/first.rs");
    let header = Regex::new("(?m)^//!.*\n").unwrap();
    assert_eq!(
        readme().after_difference(),
        header.replace_all(&example, "")
    );
}

#[test]
fn the_readme_is_short() {
    let tag = Regex::new("<[^>]+>").unwrap();
    let prose = readme().prose();
    let words = tag.replace_all(&prose, " ").split_whitespace().count();
    println!("figure: docs/readme_words = {words} words");
    assert!(words <= MOST_WORDS, "{words} words");
}
