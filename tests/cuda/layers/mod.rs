//! `candle_headroom::nn` on CUDA against itself on the CPU.

mod kv_cache;
mod softmax;
