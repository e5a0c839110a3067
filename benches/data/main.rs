//! Reading samples, against the plain work that it cannot do without.
//!
//! `cargo bench --bench data [-- [--quick] [PART…]]`, where a part is `tokens`.

#[path = "../support/mod.rs"]
mod support;
mod tokens;

use support::{is_quick, measures_with_steady_heap};

type Part = fn(bool) -> anyhow::Result<()>;

const PARTS: [(&str, Part); 1] = [("tokens", tokens::compare)];

fn main() -> anyhow::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let is_asked = |name: &str| std::env::args().any(|argument| argument == name);
    let all = !PARTS.iter().any(|(name, _)| is_asked(name));
    for (name, part) in PARTS {
        if all || is_asked(name) {
            part(is_quick())?;
        }
    }
    Ok(())
}
