//! Computes a result that may not fit: asks first, catches the error, and goes on in parts.
//!
//! `cargo run --example catch_exhaustion`

use candle_core::{DType, Tensor};
use candle_headroom::{
    ByteSize, DeviceMemory, Error, ErrorExt, TrackingAllocator, process_batches,
};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

/// Compares all pairs of rows: `(rows, width)` to `(rows, rows)`.
fn similarities(rows: &Tensor) -> candle_core::Result<Tensor> {
    rows.matmul(&rows.t()?)
}

fn main() -> Result<(), Error> {
    let memory = DeviceMemory::host().limit(ByteSize::mib(64)).open()?;
    let rows = Tensor::randn(0f32, 1., (8192, 16), memory.device())?;

    // 8,192² numbers of 4 bytes: 256 MiB.
    let needed = 8192u64.pow(2) * DType::F32.size_in_bytes() as u64;
    println!(
        "{} more would fit: {:?}",
        ByteSize(needed),
        memory.would_fit(needed)
    );

    // On a GPU the allocation itself fails, with this error.
    let result = match memory.would_fit(needed) {
        Some(true) => similarities(&rows),
        _ => Err(candle_core::Error::msg(
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        )),
    };
    match result {
        Ok(all) => println!("all at once: {:?}", all.shape()),
        Err(error) => match error.resource_exhausted() {
            Some(exhausted) => println!("not all at once: {exhausted}"),
            None => return Err(error.into()),
        },
    }

    // In parts of at most 256 rows.
    let nearest = process_batches(&rows, 256, |part| {
        let similarity = part.matmul(&rows.t()?)?;
        similarity.max(1)?.sum_all()?.to_scalar::<f32>()
    })?;
    println!(
        "{} parts, mean of the largest similarities {:.3}",
        nearest.len(),
        nearest.iter().sum::<f32>() / 8192.
    );
    println!("{}", memory.stats());
    Ok(())
}
