//! The package on the CPU: each operation against candle's own, plain operations and finite differences.

mod activation;
mod attention;
mod batch_norm;
#[path = "../../../../tests/support/candle_operations/mod.rs"]
mod candle_operations;
mod check;
mod conv;
mod conv2d;
mod cross_entropy;
mod cut;
mod dropout;
mod empty;
mod frozen;
mod functions;
mod gradients;
mod group_norm;
mod kv_cache;
mod linear;
mod linear_cross_entropy;
mod lora;
mod modules;
mod norm;
mod pairs;
mod quantized;
mod recompute;
mod rotary;
mod scope;
mod slopes;
mod softmax;
mod softmax_dim;
mod sums;
