//! Trains LoRA adapters beside a frozen model, and saves the adapters alone, under PEFT's names.
//! Run: `cargo run --example lora`.
//! Prints the layers with adapters, the bytes of the optimizer's state, and the loss of each step.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::nn as candle_nn; // computes no gradient of a frozen weight
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize};
use candle_nn::lora::Lora;
use candle_nn::{Linear, Module, VarBuilder, VarMap, linear_no_bias, loss};

/// It knows nothing of adapters, as the models of candle-transformers.
struct Model {
    hidden: Linear,
    head: Linear,
}

impl Model {
    fn new(vb: VarBuilder) -> Result<Self> {
        let hidden = linear_no_bias(512, 512, vb.pp("hidden"))?;
        let head = linear_no_bias(512, 10, vb.pp("head"))?;
        Ok(Self { hidden, head })
    }
}

impl Module for Model {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.hidden.forward(x)?.relu()?)
    }
}

fn main() -> anyhow::Result<()> {
    let device = Device::Cpu;
    // Tensors, not Vars: so does `VarBuilder::from_mmaped_safetensors` load a model from disk.
    let weight = |rows| Tensor::randn(0f32, 0.05, (rows, 512), &device);
    let base = [
        ("hidden.weight", weight(512)?),
        ("head.weight", weight(10)?),
    ];
    let base = base.map(|(name, weight)| (name.to_owned(), weight));
    let base = VarBuilder::from_tensors(base.into(), DType::F32, &device);

    let mut lora = Lora::default(); // on all linear layers
    (lora.rank, lora.alpha) = (4, 8.); // W · x + (alpha / rank) · B · A · x
    let adapters = VarMap::new(); // what is trained, and nothing else
    let (model, layers) = lora.attach(&adapters, || Model::new(base))?;
    println!("adapters: {:?}", layers.keys());
    let optimizer = AdamW::builder(&adapters).learning_rate(1e-2).build()?;
    println!("optimizer state: {}", ByteSize(optimizer.state_bytes()));
    let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;

    let x = Tensor::randn(0f32, 1., (32, 512), &device)?; // [samples, features]
    let y = Tensor::from_iter((0..32u32).map(|i| i / 4), &device)?; // [samples]
    for _ in 0..20 {
        let loss = |x: &Tensor, y: &Tensor| loss::cross_entropy(&model.forward(x)?, y);
        println!("{}", trainer.step(&(&x, &y), |(x, y), _| loss(&x, &y))?);
    }
    adapters.save(std::env::temp_dir().join("adapter_model.safetensors"))?;
    Ok(())
}
