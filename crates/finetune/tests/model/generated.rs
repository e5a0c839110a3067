//! Texts that are generated with a cache.

use super::compared::{adapted, whole};
use super::{FAMILIES, case, text};
use headroom_finetune::model::Decoder;

/// The same, each time from the whole text.
fn without_cache(decoder: &Decoder, prompt: &[u32], most: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..most {
        let logits = decoder.forward(&text(&tokens)).unwrap();
        let last = logits.narrow(1, tokens.len() - 1, 1).unwrap();
        let most = last.flatten_all().unwrap().argmax(0).unwrap();
        tokens.push(most.to_scalar().unwrap());
    }
    tokens.split_off(prompt.len())
}

#[test]
fn a_cache_changes_nothing() {
    for name in FAMILIES {
        let folder = case(name);
        let decoder = whole(&folder).unwrap().decoder;
        let with_adapter = adapted(&folder, &folder.join("adapter")).unwrap().decoder;
        for decoder in [decoder, with_adapter] {
            // Shorter and longer than the window of 5.
            for prompt in [&[1u32, 7][..], &[1, 7, 3, 9, 2, 6, 4, 8]] {
                let made = decoder.generate(prompt, 12, |_| false).unwrap();
                assert_eq!(made, without_cache(&decoder, prompt, 12), "{name}");
            }
        }
    }
}

#[test]
fn it_ends_where_it_should() {
    let decoder = whole(&case("llama-2")).unwrap().decoder;
    let all = decoder.generate(&[1], 20, |_| false).unwrap();
    assert_eq!(all.len(), 20);
    let end = all[5];
    let first = all.iter().position(|token| *token == end).unwrap();
    let made = decoder.generate(&[1], 20, |token| token == end).unwrap();
    assert_eq!(made, all[..first]);
    assert!(decoder.generate(&[1], 0, |_| false).unwrap().is_empty());
    // 128 positions.
    let prompt = [1; 126];
    assert_eq!(decoder.generate(&prompt, 20, |_| false).unwrap().len(), 2);
    let error = decoder.generate(&[], 20, |_| false).unwrap_err();
    assert!(error.to_string().contains("no prompt"), "{error}");
    let error = decoder.forward(&text(&[1; 129])).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("129 tokens are more than `max_position_embeddings`, 128"),
        "{error}"
    );
}
