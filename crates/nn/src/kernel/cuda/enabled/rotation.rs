//! How queries and keys are rotated in one launch.

use candle_core::{CudaDevice, Result, Tensor};

use super::launch::{Launch, Module, each_element, module};

const ROTARY: Module = module!("rotary");

/// Which pairs are rotated, and how.
pub struct Turn {
    /// Whether neighbours are a pair; else elements of the two halves.
    pub neighbours: bool,
    /// Whether the tensors are of (samples, time, heads, d); else of (samples, heads, time, d).
    pub time_first: bool,
    /// Whether by the negative angles.
    pub back: bool,
}

/// Rotates two contiguous tensors by angles of (time, d/2) or (samples, time, d/2). The shapes have been checked by the caller.
pub fn rotate_both(
    turn: &Turn,
    device: &CudaDevice,
    tables: [&Tensor; 2],
    tensors: [&Tensor; 2],
) -> Result<[Tensor; 2]> {
    let [q, k] = tensors;
    let (_, first, second, d) = q.dims4()?;
    let (time, of_heads) = match turn.time_first {
        true => (first, 2),
        false => (second, 1),
    };
    // (pairs, heads, time, half, neighbours, time first, by sample, back, tables, tensors, outputs), where there are two numbers of pairs and of
    // heads, the tensors and outputs have two elements for each pair, and the tables `half` for each time, or each time of each sample.
    let [lens, heads] = [
        tensors.map(Tensor::elem_count),
        [q.dim(of_heads)?, k.dim(of_heads)?],
    ];
    let pairs = lens.map(|len| len / 2);
    let by_sample = tables.map(Tensor::rank) == [3, 3];
    let flags = [turn.neighbours, turn.time_first, by_sample, turn.back].map(u64::from);
    let sizes = [pairs, heads, [time, d / 2]].concat().into_iter();
    let numbers = sizes.map(|size| size as u64).chain(flags);
    let angles = tables.map(Tensor::elem_count);
    let counts = [angles, lens, lens].concat();
    let grid = each_element(pairs.into_iter().sum());
    let launch = Launch::new(ROTARY, grid, numbers, counts);
    let sources = [tables[0], tables[1], q, k].map(Some);
    let targets = tensors.map(|tensor| (tensor.shape().clone(), tensor.dtype()));
    launch.make("rotate_both", device, q.dtype(), &sources, None, targets)
}
