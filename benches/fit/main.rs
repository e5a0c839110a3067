//! What makes a step fit that did not: peak and time of each way, against candle without it.
//!
//! `cargo bench --bench fit [-- --quick]`

#[path = "../nn/llama.rs"]
mod llama;
mod loss;
mod recompute;
#[path = "../support/mod.rs"]
mod support;

use candle_headroom::{DeviceMemory, TrackingAllocator};
use support::{is_quick, measures_with_steady_heap};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn main() -> candle_headroom::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let memory = DeviceMemory::host().open()?;
    recompute::compare(&memory, is_quick())?;
    loss::compare(&memory, is_quick())?;
    Ok(())
}
