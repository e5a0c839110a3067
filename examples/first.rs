//! README's loop: a batch of 4,000 samples is trained under a limit that it does not fit into.
//! Run: `cargo run --example first`.
use candle_core::{DType, Tensor};
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, TrackingAllocator};
use candle_nn::{Activation, Module, VarBuilder, VarMap, linear, loss, seq};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system(); // counts memory on the CPU

fn main() -> candle_headroom::Result<()> {
    let memory = DeviceMemory::cuda_if_available(0)
        .limit(ByteSize::mib(24))
        .open()?;
    let device = memory.device();
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, device);
    let hidden = linear(64, 512, vb.pp("hidden"))?;
    let model = seq().add(hidden).add(Activation::Relu);
    let model = model.add(linear(512, 10, vb.pp("out"))?);
    let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
    let mut trainer = AdaptiveTrainer::builder(optimizer)
        .memory(&memory)
        .build()?;

    for _ in 0..3 {
        let x = Tensor::randn(0f32, 1., (4000, 64), device)?; // [samples, features]
        let y = Tensor::zeros(4000, DType::U32, device)?; // [samples]
        let report = trainer.step(&(x, y), |(x, y), _| {
            loss::cross_entropy(&model.forward(&x)?, &y)
        })?;
        println!("{report}");
    }
    Ok(())
}
