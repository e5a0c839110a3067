//! Decoders of the Llama family on `candle_headroom::nn`, whole or with adapters (LoRA), in the files of transformers and PEFT.

mod base;
mod config;
mod decoder;
mod files;
mod gguf;
mod layers;
mod parameters;
pub mod peft;
mod rope;
mod table;

pub use base::{Base, Quantization};
pub use config::{Config, Family};
pub use decoder::Decoder;
pub use files::{INDEX, WEIGHTS, load_into, save_model, shards};
pub use parameters::initialize;
pub use rope::RopeScaling;
