//! Optimizers that share their work over ranks: the bits, and the saved state, of one that does it alone.

mod equality;
mod frozen;
mod moved;
#[path = "../../../support/sharded.rs"]
mod ranks;
mod refused;
mod saved;

use super::*;
use candle_headroom::optim::{Shard, StateDict};
use ranks::{Options, Ranks, SHAPES, contents, cut, unspoiled};

fn plain<A: Algorithm>(builder: FusedBuilder<A>) -> FusedBuilder<A> {
    builder
}

/// So many ranks that own pieces of two blocks of 8 bits in turn.
fn ranks<A: Algorithm>(
    count: usize,
    dtype: DType,
    params: &A,
    options: Options<'_, A>,
) -> Ranks<A> {
    let pieces = cut(&SHAPES, count, 512, 256);
    Ranks::new(&Device::Cpu, &SHAPES, dtype, pieces, params, options)
}
