//! Pages read alone: what a reader sees first, what to import, and how long it is.

use super::page::{Block, pages};

/// Lines of a page that is read, not looked up.
const LONGEST: usize = 210;

#[test]
fn a_how_to_begins_with_what_the_reader_sees() {
    for page in pages()
        .iter()
        .filter(|page| page.path.starts_with("how-to/"))
    {
        let first = page.text.split("\n\n").nth(1).unwrap_or_default();
        assert!(first.starts_with("**You see** "), "{}: {first}", page.path);
    }
}

#[test]
fn a_page_with_a_program_says_what_to_import() {
    for page in pages()
        .iter()
        .filter(|page| !page.path.starts_with("reference/"))
    {
        let blocks = page.blocks();
        let is = |language: &'static str| {
            move |block: &Block| block.language.split(',').next() == Some(language)
        };
        let manifests = blocks
            .iter()
            .filter(|block| is("toml")(block) && block.text.contains("[dependencies]"));
        let text: String = manifests.map(|block| &*block.text).collect();
        for block in blocks.iter().filter(|block| is("rust")(block)) {
            let has_faults = !block.text.contains("testing::") || text.contains("\"testing\"");
            assert!(
                has_faults,
                "{}: its programs need the feature `testing`",
                page.path
            );
            for name in [
                "anyhow",
                "candle_core",
                "candle_headroom",
                "candle_nn",
                "tempfile",
                "thiserror",
            ] {
                if block.text.contains(&format!("{name}::")) {
                    let package = name.replace('_', "-");
                    assert!(
                        text.contains(&format!("{package} = ")),
                        "{}: {package} is not among its dependencies",
                        page.path
                    );
                }
            }
        }
    }
}

#[test]
fn pages_are_short_and_lead_on() {
    for page in pages() {
        let lines = page.text.lines().count();
        assert!(lines <= LONGEST, "{}: {lines} lines", page.path);
        let leads_on = page.words().contains("][");
        assert!(
            leads_on || page.path.starts_with("reference/"),
            "{}: where to go on?",
            page.path
        );
    }
}

/// The loop before and after, on the page that shows how to change a candle loop.
#[test]
fn the_difference_leads_to_the_loop_on_the_page() {
    let pages = pages();
    let page = pages
        .iter()
        .find(|page| page.path == "how-to/cuda-out-of-memory")
        .unwrap();
    let blocks = page.blocks();
    let diff = blocks
        .iter()
        .find(|block| block.language == "diff")
        .unwrap();
    let after: String = diff
        .text
        .lines()
        .filter(|line| !line.starts_with('-'))
        .map(|line| format!("{}\n", &line[1..]))
        .collect();
    let program = blocks
        .iter()
        .find(|block| block.language == "rust")
        .unwrap();
    assert_eq!(after, program.text);
}
