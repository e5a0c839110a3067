//! Whether every public name of `nn` is in the table of functions.

use std::collections::BTreeSet;
use std::path::Path;

use crate::functions::{EXCLUDED, all};

/// Modules of functions and layers, and their files. The glob of `candle_nn` in them is not followed.
const MODULES: [(&str, &str); 15] = [
    ("", "lib.rs"),
    ("", "activation.rs"),
    ("", "batch_norm.rs"),
    ("", "conv/mod.rs"),
    ("", "embedding.rs"),
    ("", "group_norm.rs"),
    ("", "layer_norm.rs"),
    ("", "linear.rs"),
    ("attention::", "attention/mod.rs"),
    ("kv_cache::", "kv_cache/mod.rs"),
    ("loss::", "loss/mod.rs"),
    ("ops::", "ops/mod.rs"),
    ("quantized::", "quantized/mod.rs"),
    ("", "rnn.rs"),
    ("rotary_emb::", "rotary_emb.rs"),
];

/// The names that a file's public items and re-exports have.
fn names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for keyword in ["\npub fn ", "\npub struct ", "\npub enum ", "\npub trait "] {
        let items = source.split(keyword).skip(1);
        let ends = |c: char| !c.is_alphanumeric() && c != '_';
        names.extend(items.filter_map(|item| item.split(ends).next().map(str::to_owned)));
    }
    // At the start of a line: those of modules within are other names of the same functions.
    for statement in source.split("\npub use ").skip(1) {
        let statement = statement.split(';').next().unwrap_or_default();
        let listed = statement
            .split_once('{')
            .map_or(statement, |(_, listed)| listed);
        for name in listed.trim_end_matches('}').split(',') {
            let name = name.rsplit(" as ").next().unwrap_or_default();
            let name = name.rsplit("::").next().unwrap_or_default().trim();
            if !name.is_empty() && name != "*" {
                names.push(name.to_owned());
            }
        }
    }
    names
}

#[test]
fn every_public_name_is_in_the_table_or_excluded_with_a_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let cases = all();
    let covered = cases.iter().flat_map(|case| case.covers.iter().copied());
    let known: BTreeSet<_> = covered
        .chain(EXCLUDED.iter().map(|(name, _)| *name))
        .collect();
    let mut missing = BTreeSet::new();
    let mut found = 0;
    for (module, file) in MODULES {
        let source = std::fs::read_to_string(folder.join(file)).expect("a source file");
        for name in names(&source) {
            found += 1;
            let name = format!("{module}{name}");
            if !known.contains(name.as_str()) {
                missing.insert(name);
            }
        }
    }
    assert!(found > 80, "only {found} names were found");
    assert!(
        missing.is_empty(),
        "neither in tests/nn/functions nor excluded: {missing:#?}"
    );
}
