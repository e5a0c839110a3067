//! Which samples come next?

mod check;
mod collate;
mod dataset;
#[cfg(feature = "image")]
mod images;
mod lines;
mod loaded;
mod loader;
mod order;
#[cfg(feature = "parquet")]
mod parquet;
mod safetensors;
mod stage;
mod tensors;
mod tokens;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::error::DataError;
use crate::fixed_file::FixedFile;

#[cfg(feature = "parquet")]
pub use self::parquet::{ParquetBuilder, ParquetDataset};
pub use self::safetensors::{SafetensorsBuilder, SafetensorsDataset};
pub use crate::batch::Position;
pub use check::{Check, check};
pub use collate::{Pack, Packed, Pad, Padded, Piece, stack};
pub use dataset::{Concat, Dataset, Items, TensorDataset};
#[cfg(feature = "image")]
pub use images::{Image, ImageFolder, ImageFolderBuilder, stack_images};
pub use lines::{JsonLines, Lines, LinesBuilder};
pub use loaded::Loaded;
pub use loader::{Continued, Epoch, Epochs, Loader, LoaderBuilder, LoaderStats, Source, Stream};
pub use tensors::Tensors;
pub use tokens::{TokenType, TokenWindow, Tokens, TokensBuilder, stack_tokens};

/// Opens a file that is not empty.
fn open(path: &Path) -> Result<FixedFile, DataError> {
    let file = FixedFile::open(path).map_err(|reason| DataError::io(path, None, reason))?;
    match file.len() {
        0 => Err(DataError::file(path, None, "is empty")),
        _ => Ok(file),
    }
}

/// Runs the user's code; a panic comes back as its message.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("not a text").to_owned()
}
