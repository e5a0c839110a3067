//! `candle_headroom::nn` on the CPU: each operation against candle's own, plain operations and finite differences.

mod batch_norm;
mod check;
mod group_norm;
mod norm;
mod rotary;
mod softmax;
