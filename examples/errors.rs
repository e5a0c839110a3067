//! Running out of memory as a typed error: one text of three is too long, and training goes on.
//! Run: `cargo run --example errors`; on a GPU with `--features cuda`.
//! Prints what ran out, how much was used, why, and what would help; on a GPU also candle's error.

use std::error::Error as _;

use candle_core::{DType, Tensor};
use candle_headroom::error::Cause;
use candle_headroom::{AdamW, AdaptiveTrainer, ByteSize, DeviceMemory, Error};
use candle_headroom::{ResourceExhausted, TrackingAllocator};
use candle_nn::{Module, VarBuilder, VarMap, linear};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system(); // counts memory on the CPU

fn main() -> candle_headroom::Result<()> {
    let memory = DeviceMemory::cuda_if_available(0)
        .limit(ByteSize::mib(32))
        .open()?;
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, memory.device());
    let model = linear(16, 256, vb)?;
    let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
    let builder = AdaptiveTrainer::builder(optimizer).memory(&memory);
    let mut trainer = builder.build()?;

    for tokens in [256, 65_536, 512] {
        let shape = (1, tokens, 16); // [samples, tokens, features]
        let text = Tensor::ones(shape, DType::F32, memory.device())?;
        match trainer.step(&text, |x, _| model.forward(&x)?.sqr()?.mean_all()) {
            Ok(report) => println!("{report}"),
            // Nothing has changed: leave this text out and go on.
            Err(Error::ResourceExhausted(exhausted)) => explain(&exhausted),
            // Another error, such as `Error::DeviceFault`: this process has lost the GPU.
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads the fields of the error; `{exhausted:#}` prints all of them.
fn explain(exhausted: &ResourceExhausted) {
    let show = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |it| ByteSize(it).to_string());
    let (used, limit) = (show(exhausted.bytes.peak), show(exhausted.bytes.limit));
    println!("out of {}: {}", exhausted.resource, exhausted.cause);
    println!("  {used} used of {limit}");
    match exhausted.cause {
        Cause::NeverFits => println!("  a smaller batch does not help"),
        Cause::Neighbour => println!("  try again when the other process has ended"),
        _ => println!("  try a smaller batch"),
    }
    for remedy in exhausted.ranked_remedies() {
        println!("  would help: {remedy}");
    }
    if let Some(source) = exhausted.source() {
        println!("  from candle: {source}");
    }
}
