//! The model of the program `finetune`: its files, its families and its adapters, beside transformers and PEFT.
//!
//! `crates/finetune/tests/data` has small random models of each family and what torch 2.15.0, transformers 5.23.0 and peft 0.21.2
//! computed with them, made by `scripts/compare-with-transformers.sh --golden crates/finetune/tests/data`.

mod adapters;
#[path = "../support/cases.rs"]
mod cases;
#[path = "../../benches/transformers/compared.rs"]
#[allow(dead_code, reason = "the benchmark saves")]
mod compared;
mod families;
mod folders;
mod generated;
mod options;
mod spans;
mod texts;

use cases::{case, copy, edit, numbers, text};

const FAMILIES: [&str; 8] = [
    "llama-2",
    "llama-3",
    "llama-linear-biases",
    "mistral",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "smollm",
];
