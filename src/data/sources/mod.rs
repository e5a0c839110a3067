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

#[cfg(feature = "image")]
mod images;
#[cfg(feature = "parquet")]
mod parquet;

#[cfg(feature = "image")]
pub use self::images::{Channels, Image, ImageFolder, ImageFolderBuilder, stack_images};
#[cfg(feature = "parquet")]
pub use self::parquet::{ParquetBuilder, ParquetDataset};
