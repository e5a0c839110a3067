//! Adaptive batches: a batch of 6,000 samples does not fit, so the trainer cuts it during the step.
//! Run: `cargo run --example adaptive`.
//! Prints each change of the micro-batch size, and every tenth step with its peak, below 16 MiB.

use candle_core::{DType, Device, Result, Tensor};
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, TrackingAllocator};
use candle_nn::{Activation, Module, VarBuilder, VarMap, linear, loss, seq};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system(); // counts memory on the CPU

/// Points on three spirals, [points, 2], and the spiral of each, [points].
fn spirals(points: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for i in 0..points {
        let radius = i as f32 / points as f32;
        let angle = 5. * radius + 2.1 * (i % 3) as f32;
        x.extend([radius * angle.cos(), radius * angle.sin()]);
        y.push(i as u32 % 3);
    }
    let x = Tensor::from_vec(x, (points, 2), device)?;
    Ok((x, Tensor::new(y, device)?))
}

fn main() -> candle_headroom::Result<()> {
    let memory = DeviceMemory::cuda_if_available(0)
        .limit(ByteSize::mib(16))
        .open()?;
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, memory.device());
    let model = seq()
        .add(linear(2, 256, vb.pp("first"))?)
        .add(Activation::Relu)
        .add(linear(256, 256, vb.pp("second"))?)
        .add(Activation::Relu)
        .add(linear(256, 3, vb.pp("third"))?);
    let optimizer = AdamW::builder(&varmap).learning_rate(3e-3).build()?;
    let builder = AdaptiveTrainer::builder(optimizer).memory(&memory);
    let mut trainer = builder.build()?;

    let batch = spirals(6000, memory.device())?;
    for step in 1..=40 {
        // The closure gets a micro-batch and returns the mean over its samples. The update is that
        // of the whole batch.
        let report = trainer.step(&batch, |(x, y), _| {
            loss::cross_entropy(&model.forward(&x)?, &y)
        })?;
        for event in &report.events {
            println!("step {step}: {event}");
        }
        if step % 10 == 0 {
            println!("{report}");
        }
    }
    if let Some(plan) = trainer.plan() {
        println!("{plan}"); // why this size
    }
    Ok(())
}
