//! The form of a page: the answer first, a program that is an example, no dependencies of its own, and how long it is.

use regex::Regex;

use super::page::{Block, Page, pages, read};

/// Lines (without links and output) and words of a page that is read, not looked up; of the answer that it begins with; and lines of a program.
const LONGEST: usize = 210;
const MOST_WORDS: usize = 900;
const MOST_IN_ANSWER: usize = 60;
const LONGEST_PROGRAM: usize = 60;

/// Pages that are read.
fn read_pages() -> impl Iterator<Item = Page> {
    let pages = pages().into_iter();
    pages.filter(|page| !page.path.starts_with("reference/"))
}

fn count(text: &str) -> usize {
    text.split_whitespace().count()
}

fn is(language: &'static str) -> impl Fn(&&Block) -> bool {
    move |block| block.language.split(',').next() == Some(language)
}

#[test]
fn a_how_to_begins_with_its_answer() {
    for page in read_pages().filter(|page| page.path.starts_with("how-to/")) {
        let first = page.text.split("\n\n").nth(1).unwrap_or_default();
        let is_prose = !first.starts_with(['#', '|', '<', '-']) && !first.starts_with("```");
        let is_short = count(first) <= MOST_IN_ANSWER;
        assert!(is_prose && is_short, "{}: {first}", page.path);
    }
}

#[test]
fn dependencies_stand_once_and_name_what_programs_use() {
    let start = Page {
        path: "README".to_owned(),
        text: read("docs/README.md"),
    };
    let is_manifest = |block: &&Block| block.text.contains("[dependencies]");
    let manifest = start.blocks().into_iter().find(|block| is_manifest(&block));
    let manifest = manifest.expect("docs/README.md has the dependencies").text;
    for page in read_pages().filter(|page| page.path.starts_with("how-to/")) {
        let blocks = page.blocks();
        let has_own = blocks
            .iter()
            .filter(is("toml"))
            .any(|block| is_manifest(&block));
        assert!(
            !has_own,
            "{}: the dependencies stand in docs/README.md",
            page.path
        );
        for block in blocks.iter().filter(is("rust")) {
            for name in [
                "anyhow",
                "candle_core",
                "candle_headroom",
                "candle_nn",
                "tempfile",
                "thiserror",
                "tracing",
            ] {
                let package = name.replace('_', "-");
                let is_used = block.text.contains(&format!("{name}::"));
                let is_named = manifest.contains(&format!("{package} = "));
                assert!(!is_used || is_named, "{}: {package}", page.path);
            }
        }
    }
}

#[test]
fn pages_are_short_and_lead_on() {
    let definition = Regex::new(r"(?m)^\[[^\]]+\]: .*$").unwrap();
    let mut too_long = Vec::new();
    for page in read_pages() {
        let outputs = page
            .blocks()
            .into_iter()
            .filter(|block| block.language == "text");
        let output: usize = outputs.map(|block| block.text.lines().count()).sum();
        let lines = definition
            .replace_all(&page.text, "")
            .trim_end()
            .lines()
            .count()
            - output;
        assert!(lines <= LONGEST, "{}: {lines} lines", page.path);
        let words = count(&definition.replace_all(&page.prose(), ""));
        too_long.extend((words > MOST_WORDS).then(|| format!("{}: {words} words", page.path)));
        assert!(
            page.words().contains("]["),
            "{}: where to go on?",
            page.path
        );
    }
    println!(
        "figure: docs/pages_over_900_words = {} pages",
        too_long.len()
    );
    assert!(too_long.is_empty(), "{too_long:?}");
}

#[test]
fn programs_are_examples_and_output_is_real() {
    let named = Regex::new(r"(?s)<!-- (examples/\S+\.rs) -->\n+```(\S+)\n(.*?)```").unwrap();
    let mut longest = 0;
    for page in pages() {
        for example in named.captures_iter(&page.text) {
            assert_eq!(
                example[3],
                read(&example[1]),
                "{}: {}",
                page.path,
                &example[1]
            );
        }
        assert!(
            !page.text.contains("TODO"),
            "{}: something is not filled in",
            page.path
        );
        let programs = page.blocks().into_iter().filter(|block| is("rust")(&block));
        let lines = programs.map(|block| block.text.lines().count()).max();
        longest = longest.max(lines.unwrap_or(0));
        assert!(
            lines <= Some(LONGEST_PROGRAM),
            "{}: {lines:?} lines",
            page.path
        );
    }
    println!("figure: docs/examples_longest = {longest} lines");
}

/// The loop before and after, on the page that shows how to change a candle loop.
#[test]
fn the_difference_leads_to_the_loop_on_the_page() {
    let pages = pages();
    let page = pages
        .iter()
        .find(|page| page.path == "how-to/cuda-out-of-memory")
        .unwrap();
    assert_eq!(page.after_difference(), page.first("rust"));
}
