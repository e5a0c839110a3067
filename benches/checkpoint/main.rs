//! What checkpoints cost: the time that training waits for one, and the time until one is on the disk against a copy of its files.
//!
//! `cargo bench --bench checkpoint [-- --quick]`

#[path = "../support/mod.rs"]
mod support;

mod stall;
mod write;

/// A model of about 8.4 million parameters, 100 MB with AdamW's moments.
mod model;

use candle_headroom::Result;

fn main() -> Result<()> {
    let is_quick = support::is_quick();
    stall::measure(is_quick)?;
    write::measure(is_quick)
}
