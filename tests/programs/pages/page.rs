//! A page of the book: its headings, links and blocks of code.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

pub const KINDS: [&str; 4] = ["tutorial", "how-to", "reference", "explanation"];

pub struct Page {
    /// `how-to/gradient-checkpointing`.
    pub path: String,
    pub text: String,
}

pub struct Block {
    /// What stands behind the opening fence, such as `rust,no_run`.
    pub language: String,
    pub text: String,
}

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages of the four kinds, in the order of their paths.
pub fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    for kind in KINDS {
        for entry in fs::read_dir(root().join("docs").join(kind)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(name) = name.strip_suffix(".md") {
                let path = format!("{kind}/{name}");
                let text = read(format!("docs/{path}.md"));
                pages.push(Page { path, text });
            }
        }
    }
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    pages
}

impl Page {
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for line in self.text.lines() {
            match (&mut open, line.strip_prefix("```")) {
                (None, Some(language)) => {
                    let (language, text) = (language.to_owned(), String::new());
                    open = Some(Block { language, text });
                }
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(block), None) => block.text.extend([line, "\n"]),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block does not end", self.path);
        blocks
    }

    /// The first block in this language.
    pub fn first(&self, language: &str) -> String {
        let mut blocks = self.blocks().into_iter();
        let found = blocks.find(|block| block.language == language);
        found
            .unwrap_or_else(|| panic!("{}: no {language}", self.path))
            .text
    }

    /// What the page's difference leads to.
    pub fn after_difference(&self) -> String {
        let diff = self.first("diff");
        let after = diff.lines().filter(|line| !line.starts_with('-'));
        after.map(|line| format!("{}\n", &line[1..])).collect()
    }

    /// The text without blocks of code.
    pub fn prose(&self) -> String {
        let fence = Regex::new("(?ms)^```.*?^```$").unwrap();
        fence.replace_all(&self.text, "").into_owned()
    }

    /// The text without code.
    pub fn words(&self) -> String {
        let span = Regex::new("`[^`\n]*`").unwrap();
        span.replace_all(&self.prose(), "").into_owned()
    }

    /// What `#…` in a link can name, as GitHub, mdBook and rustdoc derive it from a heading.
    pub fn anchors(&self) -> Vec<String> {
        let prose = self.prose();
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        let anchor = |heading: &str| {
            let text = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = text
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.collect::<String>().replace(' ', "-")
        };
        headings.map(anchor).collect()
    }
}
