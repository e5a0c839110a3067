//! Decoders of the Llama family on `candle_headroom::nn`, whole or with adapters (LoRA), in the files of transformers and PEFT.

mod attention;
mod block;
mod config;
mod decoder;
mod files;
mod fill;
mod generate;
mod initial;
mod lora;
mod mlp;
pub mod peft;
mod place;
mod projection;
mod rotations;
mod save;
mod spans;
mod view;
mod weights;

pub use config::{Config, Family, RopeScaling};
pub use decoder::Decoder;
pub use files::{check_names, load_into, open_weights, save_model};
pub use initial::initialize;
pub use lora::Lora;
