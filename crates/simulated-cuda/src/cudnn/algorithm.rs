//! The algorithms of forward convolutions, which differ here in nothing but their workspaces.

use super::handle::{BAD_PARAM, DnnResult, NOT_SUPPORTED};
use super::shape::Shape;
use crate::status::SUCCESS;

/// The number of `cudnnConvolutionFwdAlgo_t`.
pub const COUNT: u32 = 8;
/// All of them in the order of preference: first the one for tensor cores, last those that are not modelled.
const PREFERENCE: [u32; COUNT as usize] = [1, 0, 2, 3, 4, 5, 6, 7];

/// The bytes that an algorithm needs, instead of cuDNN's own numbers, which it documents for no algorithm.
pub fn workspace(shape: &Shape, algorithm: u32) -> DnnResult<u64> {
    let [_, inputs, height, width] = shape.filter.sizes;
    let [.., rows, columns] = shape.output.sizes;
    match algorithm {
        // The implicit product, which needs none.
        0 => Ok(0),
        // The precomputed one: all tensors in another layout, which it may want.
        1 => Ok(shape.input.bytes() + shape.filter.bytes() + shape.output.bytes()),
        // The explicit product: one image's patches.
        2 => {
            let patch = inputs * shape.convolution.groups * height * width;
            Ok((patch * rows * columns) as u64 * shape.input.kind.bytes())
        }
        // Direct, by Fourier transforms and by Winograd's: each of them is for some convolutions only.
        3..COUNT => Err(NOT_SUPPORTED),
        _ => Err(BAD_PARAM),
    }
}

/// A `cudnnConvolutionFwdAlgoPerf_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Performance {
    pub algorithm: u32,
    pub status: u32,
    pub time: f32,
    pub memory: usize,
    pub determinism: u32,
    pub math: u32,
    reserved: [i32; 3],
}

/// What is known of each algorithm for a convolution, best first.
pub fn performances(shape: &Shape) -> [Performance; COUNT as usize] {
    PREFERENCE.map(|algorithm| {
        let memory = workspace(shape, algorithm);
        Performance {
            algorithm,
            status: memory.err().unwrap_or(SUCCESS),
            time: if memory.is_ok() { 0.0 } else { -1.0 },
            memory: memory.unwrap_or(0) as usize,
            determinism: 1,
            math: 0,
            reserved: [0; 3],
        }
    })
}
