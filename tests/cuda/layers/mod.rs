//! `candle_headroom::nn` on CUDA against itself on the CPU.

mod activations;
mod losses;
mod products;
mod softmax;
