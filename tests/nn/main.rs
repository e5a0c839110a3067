//! `candle_headroom::nn` on the CPU: each operation against candle's own, plain operations and finite differences.

mod check;
mod kv_cache;
mod softmax;
