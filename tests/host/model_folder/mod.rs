//! What `headroom estimate` says of a folder is what training takes.

mod decoder;

use std::fs;
use std::process::Command;

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::{Fixed, Recompute};
use candle_headroom::{AdamW, AdaptiveTrainer, DeviceMemory};
use decoder::{Decoder, Sizes};
use serde_json::{Value, json};

use crate::support::alone;

const LENGTH: usize = 64;

/// The proportions of a small Llama.
const SIZES: Sizes = Sizes {
    vocabulary: 2048,
    width: 128,
    inner: 352,
    layers: 6,
    heads: 4,
    key_heads: 2,
    has_head_norms: false,
    is_tied: true,
    rank: None,
    dtype: DType::F32,
};

/// What the program says of a folder with this model.
fn estimate(sizes: Sizes, samples: usize) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let config = json!({
        "model_type": if sizes.has_head_norms { "qwen3" } else { "llama" },
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.key_heads,
        "head_dim": sizes.width / sizes.heads,
        "tie_word_embeddings": sizes.is_tied,
        "max_position_embeddings": LENGTH,
        "torch_dtype": match sizes.dtype { DType::BF16 => "bfloat16", _ => "float32" },
    });
    fs::write(folder.path().join("config.json"), config.to_string()).expect("a file");
    let mut program = Command::new(env!("CARGO_BIN_EXE_headroom"));
    program.arg("estimate").arg(folder.path());
    program.args([
        "--json",
        "--cpu",
        "--memory",
        "1GiB",
        "--batch",
        &samples.to_string(),
    ]);
    if let Some(rank) = sizes.rank {
        program.args(["--lora-rank", &rank.to_string()]);
    }
    let output = program.output().expect("the program");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Bytes held between steps, and the highest use in one.
fn measure(
    sizes: Sizes,
    samples: usize,
    recompute: Recompute,
    without_logits: bool,
) -> candle_headroom::Result<(u64, u64)> {
    let memory = DeviceMemory::host().open()?;
    let in_use = || memory.in_use().expect("it is counted");
    let text = |shift: usize| {
        let tokens = (0..samples * LENGTH).map(|i| ((i + shift) * 31 % sizes.vocabulary) as u32);
        Tensor::from_iter(tokens, &Device::Cpu)?.reshape((samples, LENGTH))
    };
    let batch = (text(0)?, text(1)?);
    let before = in_use();
    let decoder = Decoder::new(sizes, LENGTH)?;
    let optimizer = AdamW::builder(decoder.vars.clone()).build()?;
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .policy(Fixed::new(samples)?)
        .recompute(recompute)
        .memory(&memory)
        .build()?;
    let mut step = || trainer.step(&batch, |(x, y), _| decoder.loss(&x, &y, without_logits));
    step()?; // allocates what is held
    let held = in_use() - before;
    let scope = memory.peak_scope();
    step()?;
    let peak = scope.peak().expect("it is counted") - before;
    Ok((held, peak))
}

/// Asserts that all four ways take what the program says: within 5 %, and for half types, of which candle's products on the CPU make copies
/// of their own, within 10 %.
fn assert_agrees(name: &str, sizes: Sizes, samples: usize) -> candle_headroom::Result<()> {
    let _alone = alone();
    let said = estimate(sizes, samples);
    let mut wrong = Vec::new();
    let most = if sizes.dtype == DType::F32 { 5. } else { 10. };
    // Thread pools, and the workspaces of products.
    measure(sizes, 1, Recompute::Never, true)?;
    for way in said["micro_batch"]["ways"].as_array().expect("ways") {
        let flag = |name: &str| way[name].as_bool().expect("a flag");
        let recompute = match flag("recomputes") {
            true => Recompute::Always,
            false => Recompute::Never,
        };
        let (held, peak) = measure(sizes, samples, recompute, flag("without_logits"))?;
        let off =
            |said: &Value, found: u64| 100. * (said.as_f64().expect("bytes") / found as f64 - 1.);
        let (of_held, of_peak) = (off(&said["held_bytes"], held), off(&way["peak"], peak));
        println!("{name} {way}: held {held} ({of_held:+.1} %), peak {peak} ({of_peak:+.1} %)");
        // Besides tensors, a trainer holds tables and names.
        let is_held = of_held.abs() < 1.
            || said["held_bytes"].as_u64().expect("bytes").abs_diff(held) < 256 << 10;
        if !is_held || of_peak.abs() > most {
            wrong.push(format!(
                "{way}: held {held} ({of_held:+.1} %), peak {peak} ({of_peak:+.1} %)"
            ));
        }
    }
    assert!(wrong.is_empty(), "{name}: {wrong:#?}");
    Ok(())
}

#[test]
fn full_training_of_a_llama_takes_what_the_program_says() -> candle_headroom::Result<()> {
    assert_agrees("tied, 8", SIZES, 8)?;
    assert_agrees("tied, 2", SIZES, 2)
}

#[test]
fn a_head_of_its_own_and_norms_of_heads_are_counted() -> candle_headroom::Result<()> {
    let sizes = Sizes {
        is_tied: false,
        has_head_norms: true,
        layers: 3,
        key_heads: 4,
        ..SIZES
    };
    assert_agrees("qwen3", sizes, 8)
}

#[test]
fn adapters_take_what_the_program_says() -> candle_headroom::Result<()> {
    assert_agrees(
        "lora",
        Sizes {
            rank: Some(8),
            ..SIZES
        },
        8,
    )
}

#[test]
fn half_types_take_what_the_program_says() -> candle_headroom::Result<()> {
    assert_agrees(
        "bf16",
        Sizes {
            dtype: DType::BF16,
            ..SIZES
        },
        8,
    )
}
