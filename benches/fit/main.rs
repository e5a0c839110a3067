//! What makes a step fit that did not: peak and time of each way, against candle without it.
//!
//! `cargo bench --bench fit [-- [--quick] [PART…]]`, where a part is `recompute`, `auto`, `loss`, `remedies` or `state`.

mod auto;
#[path = "../nn/llama.rs"]
mod llama;
mod loss;
mod recompute;
mod remedies;
mod state;
#[path = "../support/mod.rs"]
mod support;
#[path = "../../tests/support/remedies.rs"]
mod tried;

use candle_headroom::{DeviceMemory, TrackingAllocator};
use support::{is_quick, measures_with_steady_heap};

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

type Part = fn(&DeviceMemory, bool) -> anyhow::Result<()>;

const PARTS: [(&str, Part); 5] = [
    ("recompute", |memory, quick| {
        Ok(recompute::compare(memory, quick)?)
    }),
    ("auto", |memory, quick| Ok(auto::sweep(memory, quick)?)),
    ("loss", |memory, quick| Ok(loss::compare(memory, quick)?)),
    ("remedies", |memory, quick| {
        Ok(remedies::compare(memory, quick)?)
    }),
    ("state", |_, quick| state::run(quick)),
];

fn main() -> anyhow::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let memory = DeviceMemory::host().open()?;
    let is_asked = |name: &str| std::env::args().any(|argument| argument == name);
    let all = !PARTS.iter().any(|(name, _)| is_asked(name));
    for (name, part) in PARTS {
        if all || is_asked(name) {
            part(&memory, is_quick())?;
        }
    }
    Ok(())
}
