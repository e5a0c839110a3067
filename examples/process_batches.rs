//! Inference over a data set under a memory limit: results come in order, one for each sample.
//! Run: `cargo run --example process_batches`.
//! Prints how the batch size was found, and the memory's use under the limit of 48 MiB.

use candle_core::{DType, Tensor};
use candle_headroom::batch::BatchProcessor;
use candle_headroom::{ByteSize, DeviceMemory, Error, Predictive, TrackingAllocator};
use candle_nn::{Activation, Module, VarBuilder, VarMap, linear, seq};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn main() -> Result<(), Error> {
    let memory = DeviceMemory::host().limit(ByteSize::mib(48)).open()?;
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, memory.device());
    let model = seq()
        .add(linear(64, 4096, vb.pp("up"))?)
        .add(Activation::Relu)
        .add(linear(4096, 10, vb.pp("down"))?);

    let inputs = Tensor::randn(0f32, 1., (10_000, 64), memory.device())?;
    let mut processor = BatchProcessor::builder(Predictive::default())
        .memory(&memory)
        .build();
    let processed = processor.process(&inputs, |chunk, _| {
        let classes = model.forward(&chunk)?.argmax(1)?;
        classes.to_vec1::<u32>()
    })?;

    for event in &processed.events {
        println!("{event}");
    }
    let classes = processed.results.concat();
    println!(
        "{} samples in {} chunks of up to {}, {} retries",
        classes.len(),
        processed.sizes.len(),
        processed.sizes.iter().max().unwrap_or(&0),
        processed.retries,
    );
    println!("{}", memory.stats());
    Ok(())
}
