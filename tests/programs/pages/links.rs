//! Links work in the repository, in the book and in rustdoc: one label for each target, defined alike everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex::Regex;

use super::page::{KINDS, Page, pages, read, root};

/// The targets of `labels`: a page, and `#…` for a heading of it.
fn check_target(
    label: &str,
    anchors: &BTreeMap<String, Vec<String>>,
    wrong: &mut Vec<String>,
    from: &str,
) {
    let (page, anchor) = label.split_once('#').unwrap_or((label, ""));
    match anchors.get(page) {
        None => wrong.push(format!("{from}: there is no page {page}")),
        Some(known) if !anchor.is_empty() && !known.iter().any(|known| known == anchor) => {
            wrong.push(format!("{from}: {page} has no heading #{anchor}"));
        }
        Some(_) => {}
    }
}

fn anchors() -> BTreeMap<String, Vec<String>> {
    pages()
        .iter()
        .map(|page| (page.path.clone(), page.anchors()))
        .collect()
}

/// `[label]: target`, as it stands at the end of a page.
fn definition(page: &Page, label: &str) -> String {
    let (target, anchor) = label
        .split_once('#')
        .map_or((label, String::new()), |(page, anchor)| {
            (page, format!("#{anchor}"))
        });
    let kind = page.path.split('/').next().unwrap();
    let path = match target
        .strip_prefix(kind)
        .and_then(|rest| rest.strip_prefix('/'))
    {
        Some(neighbour) => format!("{neighbour}.md"),
        None => format!("../{target}.md"),
    };
    format!("[{label}]: {path}{anchor}")
}

#[test]
fn no_link_of_a_page_is_broken() {
    let anchors = anchors();
    let used = Regex::new(r"\]\[([^\]\[]+)\]").unwrap();
    let inline = Regex::new(r"\]\(([^)]+)\)").unwrap();
    let mut wrong = Vec::new();
    let mut all = BTreeSet::new();
    for page in pages() {
        let words = page.words();
        let labels: BTreeSet<&str> = used
            .captures_iter(&words)
            .map(|link| link.get(1).unwrap().as_str())
            .collect();
        for label in &labels {
            check_target(label, &anchors, &mut wrong, &page.path);
        }
        for link in inline.captures_iter(&words) {
            let target = &link[1];
            let is_here = |anchor| anchors[&page.path].iter().any(|known| known == anchor);
            if !target.starts_with("https://") && !target.strip_prefix('#').is_some_and(is_here) {
                wrong.push(format!(
                    "{}: ({target}) works in no other place: use a label",
                    page.path
                ));
            }
        }
        let defined = page.prose();
        let mut defined: Vec<&str> = defined
            .lines()
            .filter(|line| line.starts_with('[') && line.contains("]: "))
            .collect();
        defined.sort_unstable();
        let mut expected: Vec<String> = labels
            .iter()
            .map(|label| definition(&page, label))
            .collect();
        expected.sort_unstable();
        if defined != expected {
            wrong.push(format!(
                "{} must end in\n{}",
                page.path,
                expected.join("\n")
            ));
        }
        all.extend(labels.into_iter().map(str::to_owned));
    }
    let rustdoc: Vec<String> = all
        .iter()
        .map(|label| {
            let (page, anchor) = label
                .split_once('#')
                .map_or((&**label, String::new()), |(page, anchor)| {
                    (page, format!("#{anchor}"))
                });
            let path = page.replace('-', "_").replace('/', "::");
            format!("[{label}]: crate::_documentation::{path}{anchor}")
        })
        .collect();
    if !read("src/documentation/links.md").lines().eq(&rustdoc) {
        wrong.push(format!(
            "src/documentation/links.md must be\n{}",
            rustdoc.join("\n")
        ));
    }
    println!("figure: docs/links_dead = {} links", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_page_is_in_the_book_and_in_rustdoc() {
    let (summary, rustdoc) = (read("docs/SUMMARY.md"), read("src/documentation.rs"));
    let link = Regex::new(r"(?m)^- \[(.*)\]\((.*)\.md\)$").unwrap();
    let mut order = Vec::new();
    let listed: BTreeMap<&str, &str> = link
        .captures_iter(&summary)
        .map(|link| (link.get(2).unwrap().as_str(), link.get(1).unwrap().as_str()))
        .inspect(|(path, _)| order.push(*path))
        .collect();
    let pages = pages();
    for page in &pages {
        let title = page.text.lines().next().unwrap().strip_prefix("# ");
        assert_eq!(
            listed.get(&*page.path).copied(),
            title,
            "{} in docs/SUMMARY.md",
            page.path
        );
    }
    assert_eq!(
        listed.len(),
        pages.len(),
        "a page of docs/SUMMARY.md does not exist"
    );
    // The same order in both.
    let module = Regex::new(r##"(?m)^        ([a-z_]+) "([a-z-]+)"$"##).unwrap();
    let modules: Vec<&str> = module
        .captures_iter(&rustdoc)
        .map(|module| {
            assert_eq!(module[1], module[2].replace('-', "_"));
            module.get(2).unwrap().as_str()
        })
        .collect();
    let names: Vec<&str> = KINDS
        .iter()
        .flat_map(|kind| {
            order
                .iter()
                .filter_map(move |path| path.strip_prefix(kind)?.strip_prefix('/'))
        })
        .collect();
    assert_eq!(modules, names, "src/documentation.rs and docs/SUMMARY.md");
}

#[test]
fn the_first_page_and_the_readme_lead_somewhere() {
    let anchors = anchors();
    let inline = Regex::new(r##"\]\(([^)#]+)(#[^)]*)?\)|(?:href|src|srcset)="([^"#]+)"##).unwrap();
    let mut wrong = Vec::new();
    for (from, folder) in [("docs/README.md", "docs"), ("README.md", "")] {
        for link in inline.captures_iter(&read(from)) {
            let target = link.get(1).or(link.get(3)).unwrap().as_str();
            if target.starts_with("https://") {
                continue;
            }
            let path = Path::new(folder).join(target);
            if !root().join(&path).exists() {
                wrong.push(format!("{from}: there is no {}", path.display()));
            }
            let page = path.to_str().unwrap().strip_prefix("docs/");
            if let (Some(page), Some(anchor)) =
                (page.and_then(|page| page.strip_suffix(".md")), link.get(2))
            {
                let label = format!("{page}{}", anchor.as_str());
                check_target(&label, &anchors, &mut wrong, from);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
