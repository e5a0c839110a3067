//! This project's own text: documents and sources, and descriptions of public items with their signatures.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The longest signature that is taken, in bytes.
const LONGEST: usize = 160;

/// Folders whose sources are learned with the documents. The signatures come from the others of `src`.
const LEARNED: [&str; 3] = ["crates/nn/src", "src/data", "src/optim"];

/// The documents and a part of the sources, one after the other.
pub fn text() -> Result<String> {
    let root = root();
    let mut files = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    collect(&root.join("docs"), "md", &mut files)?;
    for folder in LEARNED {
        collect(&root.join(folder), "rs", &mut files)?;
    }
    let texts: Result<Vec<_>> = files.iter().map(|file| read(file)).collect();
    Ok(texts?.join("\n\n"))
}

/// What the documentation of public items says first, with their signatures.
pub fn signatures() -> Result<Vec<(String, String)>> {
    let (sources, mut files) = (root().join("src"), Vec::new());
    collect(&sources, "rs", &mut files)?;
    let is_learned = |file: &&PathBuf| {
        LEARNED
            .iter()
            .any(|folder| file.starts_with(root().join(folder)))
    };
    let mut pairs = Vec::new();
    for file in files.iter().filter(|file| !is_learned(file)) {
        let items = items(&read(file)?).into_iter();
        pairs.extend(items.map(|(says, signature)| (format!("/// {says}\n"), signature)));
    }
    Ok(pairs)
}

/// The first line of documentation of each public item, and its signature.
fn items(text: &str) -> Vec<(String, String)> {
    let (mut items, mut first): (Vec<_>, Option<&str>) = (Vec::new(), None);
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if let Some(says) = line.strip_prefix("/// ") {
            first.get_or_insert(says);
        } else if line.starts_with("pub ") {
            let mut signature = line.to_owned();
            let is_open = |signature: &str| {
                let is_ended = signature.ends_with(['{', ';', ',', '}']);
                !is_ended || signature.ends_with(',') && signature.contains('(')
            };
            while is_open(&signature) && signature.len() <= LONGEST {
                let Some(more) = lines.next() else { break };
                let is_tight = signature.ends_with('(') || more == ")";
                let glue = if is_tight { "" } else { " " };
                signature = format!("{signature}{glue}{more}");
            }
            let says = first.take().filter(|_| signature.len() <= LONGEST);
            items.extend(says.map(|says| (says.to_owned(), signature)));
        } else if !line.starts_with("///") && !line.starts_with("#[") {
            first = None;
        }
    }
    items
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Adds the files of this ending in a folder, and in those within it, by name.
fn collect(folder: &Path, ending: &str, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, ending, files)?;
        } else if path.extension().is_some_and(|own| own == ending) {
            files.push(path);
        }
    }
    Ok(())
}
