//! Decoders of the Llama family on `candle_headroom::nn`, whole or with adapters (LoRA), in the files of transformers and PEFT.

mod config;
mod decoder;
mod files;
mod layers;
mod lora;
mod parameters;
pub mod peft;
mod rope;

pub use config::{Config, Family};
pub use decoder::Decoder;
pub use files::{INDEX, WEIGHTS, load_into, open_weights, save_model, shards};
pub use lora::Lora;
pub use parameters::initialize;
pub use rope::RopeScaling;
