//! Trains LoRA adapters beside a frozen model, and saves the adapters alone.
//! Run: `cargo run --example lora`.
//! Prints the bytes of the optimizer's state, for the adapters alone, and the loss of each step.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn as candle_nn; // computes no gradient of a frozen weight
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize};
use candle_nn::{Init, Linear, Module, VarBuilder, VarMap, loss};

/// W · x + (alpha / rank) · B · A · x, with W frozen (Hu et al. 2021, arXiv 2106.09685).
struct Lora {
    base: Linear,
    a: Tensor, // [rank, inputs]
    b: Tensor, // [outputs, rank]
    scale: f64,
}

impl Lora {
    fn new(base: Linear, rank: usize, alpha: f64, vb: VarBuilder) -> Result<Self> {
        let (outputs, inputs) = base.weight().dims2()?;
        let (mean, stdev) = (0., 1. / (inputs as f64).sqrt());
        let a = vb.get_with_hints((rank, inputs), "lora_a", Init::Randn { mean, stdev })?;
        let b = vb.get_with_hints((outputs, rank), "lora_b", Init::Const(0.))?; // W · x at first
        let scale = alpha / rank as f64;
        Ok(Self { base, a, b, scale })
    }
}

impl Module for Lora {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let beside = x.matmul(&self.a.t()?)?.matmul(&self.b.t()?)?;
        self.base.forward(x)? + (beside * self.scale)?
    }
}

fn main() -> anyhow::Result<()> {
    let device = Device::Cpu;
    // Tensors, not Vars: so does `VarBuilder::from_mmaped_safetensors` load a model from disk.
    let base = [(512, 512), (10, 512)].map(|shape| Tensor::randn(0f32, 0.05, shape, &device));
    let [hidden, head] = base;

    let adapters = VarMap::new(); // what is trained, and nothing else
    let vb = VarBuilder::from_varmap(&adapters, DType::F32, &device);
    let hidden = Lora::new(Linear::new(hidden?, None), 4, 8., vb.pp("hidden"))?;
    let head = Lora::new(Linear::new(head?, None), 4, 8., vb.pp("head"))?;
    let optimizer = AdamW::builder(&adapters).learning_rate(1e-2).build()?;
    println!("optimizer state: {}", ByteSize(optimizer.state_bytes()));
    let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;

    let x = Tensor::randn(0f32, 1., (32, 512), &device)?; // [samples, features]
    let y = Tensor::from_iter((0..32u32).map(|i| i / 4), &device)?; // [samples]
    for _ in 0..20 {
        let report = trainer.step(&(&x, &y), |(x, y), _| {
            loss::cross_entropy(&head.forward(&hidden.forward(&x)?.relu()?)?, &y)
        })?;
        println!("{report}");
    }
    adapters.save(std::env::temp_dir().join("adapters.safetensors"))?;
    Ok(())
}
