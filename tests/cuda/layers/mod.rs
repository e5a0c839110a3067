//! `candle_headroom::nn` on CUDA against itself on the CPU.

mod norm;
mod rotary;
mod softmax;
