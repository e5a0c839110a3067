//! Truncated files and flipped bits: an error, or what the bytes say, never a panic.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use candle_headroom::data::{Dataset, JsonLines, Lines, SafetensorsDataset, Tokens};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::file;

/// Opens every beginning of a file and 500 copies with one flipped bit, and reads all samples. Returns how many were opened.
pub fn damage<D: Dataset>(
    content: &[u8],
    open: impl Fn(&std::path::Path) -> candle_headroom::Result<D>,
) -> [usize; 2] {
    let mut opened = [0, 0];
    let mut random = StdRng::seed_from_u64(16);
    let beginnings = (0..content.len()).map(|len| (0, content[..len].to_vec()));
    let flipped = (0..500).map(|_| {
        let mut content = content.to_vec();
        let at = random.random_range(0..content.len());
        content[at] ^= 1 << random.random_range(0..8);
        (1, content)
    });
    for (kind, content) in beginnings.collect::<Vec<_>>().into_iter().chain(flipped) {
        let file = file(&content);
        let Ok(dataset) = open(file.path()) else {
            continue;
        };
        opened[kind] += 1;
        for index in 0..dataset.len() {
            let _ = dataset.get(index);
            let _ = dataset.cost(index);
        }
    }
    opened
}

#[test]
fn a_truncated_or_changed_safetensors_file_does_not_panic() {
    let x = Tensor::arange(0f32, 20., &Device::Cpu)
        .unwrap()
        .reshape((5, 4))
        .unwrap();
    let y = Tensor::arange(0u32, 5, &Device::Cpu).unwrap();
    let whole = file(b"");
    candle_core::safetensors::save(&HashMap::from([("x", x), ("y", y)]), whole.path()).unwrap();
    let content = std::fs::read(whole.path()).unwrap();
    let [beginnings, changed] = damage(&content, |path| SafetensorsDataset::builder(path).open());
    // The header states the length, so no beginning passes; a bit of the tensors' values cannot be told.
    assert_eq!(beginnings, 0);
    assert!((1..500).contains(&changed), "{changed}");
}

#[test]
fn truncated_or_changed_lines_and_tokens_do_not_panic() {
    let text = "{\"text\": \"größer\", \"label\": [1, 2.5e3, null]}\r\n\n".repeat(4);
    damage(text.as_bytes(), |path| Lines::open(path));
    damage(text.as_bytes(), |path| JsonLines::<Value>::open(path));
    let [beginnings, _] = damage(text.as_bytes(), |path| {
        Tokens::builder([path]).window(3).open()
    });
    // Every second one is a whole number of tokens, and the first ones are shorter than a window.
    assert_eq!(beginnings, text.len().div_ceil(2) - 3);
}
