//! Reading samples, against the plain work that it cannot do without.
//!
//! `cargo bench --bench data [-- [--quick] [PART…]]`, where a part is `tokens`, `waiting`, `memory`, `index`, `blocks` or, with the feature
//! `object-store`, `objects`. The part `index-of-a-billion` runs only if it is asked for: it writes a file of 2 GB.

mod blocks;
mod index;
mod loader;
#[cfg(feature = "object-store")]
mod objects;
#[cfg(feature = "object-store")]
#[path = "../../tests/objects/server.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;
mod tokens;

use candle_headroom::TrackingAllocator;
use support::{is_quick, measures_with_steady_heap};

type Part = fn(bool) -> anyhow::Result<()>;

const PARTS: &[(&str, Part)] = &[
    ("tokens", tokens::compare),
    ("waiting", loader::waiting),
    ("memory", loader::memory),
    ("index", index::of_a_part),
    ("blocks", blocks::compare),
    #[cfg(feature = "object-store")]
    ("objects", objects::compare),
];

#[global_allocator]
static ALLOCATOR: TrackingAllocator = TrackingAllocator::system();

fn main() -> anyhow::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let is_asked = |name: &str| std::env::args().any(|argument| argument == name);
    if is_asked("index-of-a-billion") {
        return index::of_a_billion();
    }
    let all = !PARTS.iter().any(|(name, _)| is_asked(name));
    for (name, part) in PARTS {
        if all || is_asked(name) {
            part(is_quick())?;
        }
    }
    Ok(())
}
