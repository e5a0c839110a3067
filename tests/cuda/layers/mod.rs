//! `candle_headroom::nn` on CUDA against itself on the CPU.

mod attention;
mod norm;
mod rotary;
mod activations;
mod losses;
mod products;
mod kv_cache;
mod softmax;
