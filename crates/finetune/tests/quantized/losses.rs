//! What training an adapter loses by a quantized base.

use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_headroom::nn::lora::Lora;
use candle_headroom::nn::{VarBuilder, VarMap};
use candle_headroom::{AdamW, AdaptiveTrainer};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{small, wide};
use headroom_finetune::model::{Base, Decoder, initialize, load_into, save_model};

const STEPS: usize = 200;
const SAMPLES: usize = 4;
const TOKENS: usize = 32;

/// The mean loss of the last 50 steps, with bytes of a page as tokens.
fn train(decoder: &Decoder, vars: &VarMap, rate: f64, steps: usize, page: &str) -> f64 {
    let page = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs/how-to")
        .join(page);
    let text = fs::read(page).unwrap();
    let optimizer = AdamW::builder(vars)
        .learning_rate(rate)
        .weight_decay(0.)
        .build()
        .unwrap();
    let mut trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
    let mut losses = Vec::new();
    for step in 0..steps {
        let sample = |sample| {
            let at = (step * SAMPLES + sample) * 131 % (text.len() - TOKENS - 1);
            text[at..at + TOKENS + 1]
                .iter()
                .map(|byte| u32::from(*byte))
        };
        let batch: Vec<u32> = (0..SAMPLES).flat_map(sample).collect();
        let batch = Tensor::from_vec(batch, (SAMPLES, TOKENS + 1), &Device::Cpu).unwrap();
        let report = trainer.step(&batch, |tokens, _| {
            let [tokens, targets] = [0, 1].map(|first| tokens.narrow(1, first, TOKENS));
            decoder.loss_sum(&tokens?.contiguous()?, &targets?.contiguous()?)
        });
        losses.push(report.unwrap().loss().unwrap());
    }
    losses[steps - 50..].iter().sum::<f64>() / 50.
}

/// A small model that has learned a page learns another one by adapters, on itself and on itself in few bits.
#[test]
fn losses_on_a_base_in_few_bits_are_close_to_those_on_f32() {
    let (folder, config) = (tempfile::tempdir().unwrap(), small());
    wide(folder.path(), &config);
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let whole = Decoder::new(&config, vb, None).unwrap();
    load_into(&vars, folder.path()).unwrap();
    let learned = train(&whole, &vars, 2e-3, STEPS, "gradient-checkpointing.md");
    assert!(learned < 3.5, "{learned}");
    save_model(folder.path(), &config, &vars).unwrap();
    let lora = Lora::default();
    let loss_of = |base: Base| {
        let adapters = VarMap::new();
        let decoder = Decoder::new(&config, base, Some((&lora, &adapters))).unwrap();
        initialize(&adapters, 0., &mut StdRng::seed_from_u64(2)).unwrap();
        train(&decoder, &adapters, 2e-3, STEPS, "fine-tune.md")
    };
    let (f32, cpu) = (DType::F32, Device::Cpu);
    let expected = loss_of(Base::open(folder.path(), f32, &cpu).unwrap());
    for name in ["q8_0", "q4_k", "nf4"] {
        let kind = name.parse().unwrap();
        let base = Base::quantized(folder.path(), &config, kind, f32, &cpu).unwrap();
        let percent = 100. * (loss_of(base) / expected - 1.);
        println!("figure: qlora/loss_{name}_vs_f32 = {percent:.2} %");
        let most = if name == "q8_0" { 1. } else { 4. };
        assert!(percent.abs() < most, "{name}: {percent} % of {expected}");
    }
}
