//! Datasets in the box.

mod lines;
mod safetensors;
mod tokens;

use std::path::Path;

use crate::error::DataError;
use crate::fixed_file::FixedFile;

pub use self::lines::{JsonLines, Lines, LinesBuilder};
pub use self::safetensors::{SafetensorsBuilder, SafetensorsDataset};
pub use self::tokens::{TokenType, TokenWindow, Tokens, TokensBuilder, stack_tokens};

#[cfg(feature = "image")]
mod images;
#[cfg(feature = "parquet")]
mod parquet;

#[cfg(feature = "image")]
pub use self::images::{Image, ImageFolder, ImageFolderBuilder, stack_images};
#[cfg(feature = "parquet")]
pub use self::parquet::{ParquetBuilder, ParquetDataset};

/// Opens a file that is not empty.
fn open(path: &Path) -> Result<FixedFile, DataError> {
    let file = FixedFile::open(path).map_err(|reason| DataError::io(path, None, reason))?;
    match file.len() {
        0 => Err(DataError::file(path, None, "is empty")),
        _ => Ok(file),
    }
}
