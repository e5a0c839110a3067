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
    assert!(!entries.is_empty());
    for entry in &entries {
        match module.kernel(entry) {
            Ok(kernel) => assert!(kernel.is_some_and(|kernel| kernel.name() == entry)),
            // The entry and a reason, also when it is asked for again.
            Err(error) => {
                let reason = error.strip_prefix(&format!("entry {entry}: "));
                assert!(reason.is_some_and(|reason| !reason.is_empty()), "{error}");
                assert_eq!(module.kernel(entry).err(), Some(error));
            }
        }
    }
}
