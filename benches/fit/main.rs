//! What makes a step fit that did not: peak and time of each way, against candle without it.
//!
//! `cargo bench --bench fit [-- [--quick] [PART…]]`, where a part is `recompute`, `auto`, `loss` or `state`.

mod auto;
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

type Part = fn(&DeviceMemory, bool) -> candle_headroom::Result<()>;

fn main() -> candle_headroom::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let memory = DeviceMemory::host().open()?;
    let parts: [(&str, Part); 3] = [
        ("recompute", recompute::compare),
        ("auto", auto::sweep),
        ("loss", loss::compare),
    ];
    let is_asked = |name: &str| std::env::args().any(|argument| argument == name);
    let all = !parts.iter().any(|(name, _)| is_asked(name));
    for (name, part) in parts {
        if all || is_asked(name) {
            part(&memory, is_quick())?;
        }
    }
    Ok(())
}
