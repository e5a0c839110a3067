//! `candle_headroom::nn` on CUDA against itself on the CPU.

mod activations;
mod attention;
mod conv;
mod embedding;
mod empty;
mod frozen;
mod functions;
mod kv_cache;
mod linear_cross_entropy;
mod losses;
mod norm;
mod products;
mod rotary;
mod softmax;
