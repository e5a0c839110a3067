//! Memory growth, and a limit that is lowered during training: smaller micro-batches follow it.
//! Run: `cargo run --example memory_growth`; on a GPU with `--features cuda`.
//! Prints each step's micro-batches and peak, and the memory in use: under 32, then under 12 MiB.

use candle_core::{DType, Tensor};
use candle_headroom::memory::Growth;
use candle_headroom::{AdaptiveTrainer, ByteSize, DeviceMemory, Sgd, TrackingAllocator};
use candle_nn::{Module, VarBuilder, VarMap, linear};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system(); // counts memory on the CPU

fn main() -> candle_headroom::Result<()> {
    // Takes memory from the GPU when it is needed and keeps it for reuse. There the limit is hard:
    // from CUDA 12.2 on, the driver refuses more. TensorFlow has either growth or a limit. On the
    // CPU it is soft: candle cannot refuse memory there, so trainers keep to it.
    let memory = DeviceMemory::cuda_if_available(0)
        .growth(Growth::OnDemand)
        .limit(ByteSize::mib(32))
        .open()?;
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, memory.device());
    let model = linear(32, 512, vb)?;
    let optimizer = Sgd::builder(&varmap).learning_rate(0.1).build()?;
    let builder = AdaptiveTrainer::builder(optimizer).memory(&memory);
    let mut trainer = builder.build()?;

    let x = Tensor::rand(0f32, 1., (2048, 32), memory.device())?; // [samples, features]
    for step in 1..=6 {
        if step == 4 {
            memory.set_limit(ByteSize::mib(12))?; // another program needs memory
            memory.trim()?; // returns what is kept for reuse
            println!("the limit is lowered");
        }
        let report = trainer.step(&x, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
        println!("{report}");
        println!("  memory: {}", memory.stats());
    }
    Ok(())
}
