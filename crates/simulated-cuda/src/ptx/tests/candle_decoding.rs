//! Whether candle's kernels decode.

use super::candle_module;

#[test]
fn every_entry_decodes() {
    let names = [
        "affine", "binary", "cast", "conv", "fill", "indexing", "reduce", "ternary", "unary",
        "sort",
    ];
    let mut errors = Vec::new();
    for name in names {
        let Some(module) = candle_module(name) else {
            return;
        };
        let entries: Vec<String> = module.entries().map(str::to_owned).collect();
        assert!(!entries.is_empty(), "{name}");
        errors.extend(
            entries
                .iter()
                .filter_map(|entry| module.kernel(entry).err()),
        );
    }
    assert!(
        errors.is_empty(),
        "{} errors: {:#?}",
        errors.len(),
        &errors[..errors.len().min(40)]
    );
}

#[test]
fn undecodable_entries_do_no_harm() {
    let Some(module) = candle_module("quantized") else {
        return;
    };
    let entries: Vec<String> = module.entries().map(str::to_owned).collect();
    let errors: Vec<String> = entries
        .iter()
        .filter_map(|entry| module.kernel(entry).err())
        .collect();
    println!(
        "quantized: {} of {} entries do not decode: {:?}",
        errors.len(),
        entries.len(),
        errors.first()
    );
}
