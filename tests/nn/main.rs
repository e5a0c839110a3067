//! `candle_headroom::nn` on the CPU: each operation against candle's own, plain operations and finite differences.

mod activation;
mod attention;
mod batch_norm;
mod check;
mod conv;
mod conv2d;
mod cross_entropy;
mod dropout;
mod empty;
mod group_norm;
mod kv_cache;
mod linear;
mod linear_cross_entropy;
mod norm;
mod pairs;
mod quantized;
mod recompute;
mod rotary;
mod softmax;
mod softmax_dim;
mod sums;
