//! `candle_headroom::nn` on the CPU: each operation against candle's own, plain operations and finite differences.

mod activation;
mod check;
mod cross_entropy;
mod dropout;
mod linear;
mod quantized;
mod softmax;
mod softmax_dim;
