//! Datasets in the box.

mod lines;
mod mapped;
mod safetensors;
mod tensors;
mod tokens;

pub use self::lines::{JsonLines, Lines, LinesBuilder};
pub use self::safetensors::{SafetensorsBuilder, SafetensorsDataset};
pub use self::tensors::TensorDataset;
pub use self::tokens::{TokenType, TokenWindow, Tokens, TokensBuilder, stack_tokens};
