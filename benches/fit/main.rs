//! What makes fit what does not fit: what it saves, and what it costs.
//!
//! `cargo bench --bench fit [-- --quick]`

mod state;
#[path = "../support/mod.rs"]
mod support;

use candle_headroom::TrackingAllocator;

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn main() -> anyhow::Result<()> {
    state::run(support::is_quick())
}
