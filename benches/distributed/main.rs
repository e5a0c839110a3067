//! Ranks under `mpirun`, each of one thread, on this machine: what an update with others costs, and what more ranks bring.
//!
//! `cargo bench --features mpi --bench distributed [-- [--quick] [PART…]]`, where a part is `step`, `scaling`, `unequal`, `state`
//! or `exchange`. It starts itself under `mpirun`; started by `mpirun`, it is one of the ranks, and needs `RAYON_NUM_THREADS=1`.

mod exchange;
mod launch;
mod ranks;
mod scaling;
mod state;
mod step;
#[path = "../support/mod.rs"]
mod support;
mod training;
mod unequal;

use anyhow::ensure;
use ranks::Ranks;
use support::{is_quick, measures_with_steady_heap};

/// A part of the benchmark, with the numbers of ranks that it runs with.
struct Part {
    name: &'static str,
    sizes: &'static [usize],
    run: fn(&Ranks, bool) -> anyhow::Result<()>,
}

const PARTS: [Part; 5] = [
    Part {
        name: "step",
        sizes: &[2],
        run: step::compare,
    },
    Part {
        name: "scaling",
        sizes: &[2],
        run: scaling::compare,
    },
    Part {
        name: "unequal",
        sizes: &[2],
        run: unequal::compare,
    },
    Part {
        name: "state",
        sizes: &[2],
        run: state::compare,
    },
    Part {
        name: "exchange",
        sizes: &[2, 4],
        run: exchange::measure,
    },
];

fn main() -> anyhow::Result<()> {
    if !measures_with_steady_heap() {
        return Ok(());
    }
    let is_named = |part: &Part| std::env::args().any(|argument| argument == part.name);
    let all = !PARTS.iter().any(is_named);
    let asked = |size: usize| {
        let parts = PARTS.iter().filter(move |part| all || is_named(part));
        parts.filter(move |part| part.sizes.contains(&size))
    };
    if !launch::is_rank() {
        let sizes = [2, 4].into_iter();
        return sizes
            .filter(|size| asked(*size).next().is_some())
            .try_for_each(launch::start);
    }
    let threads = candle_core::utils::get_num_threads();
    ensure!(
        threads == 1,
        "a rank has {threads} threads: set RAYON_NUM_THREADS=1"
    );
    let ranks = Ranks::open()?;
    let mut parts = asked(ranks.group.size());
    parts.try_for_each(|part| (part.run)(&ranks, is_quick()))
}
