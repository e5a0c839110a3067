//! Which samples come next? Datasets, and loaders that read them ahead of training.
//!
//! A [`Dataset`] reads one sample by its index. [`TensorDataset`] and [`Items`] hold samples in memory; [`Lines`], [`JsonLines`], [`Tokens`],
//! [`SafetensorsDataset`] and, with the features `parquet` and `image`, `ParquetDataset` and `ImageFolder` read files; [`Stream`] takes
//! any iterator. A [`Loader`] reads samples in worker threads and makes batches of them by a collate function, such as [`stack`],
//! [`stack_tokens`], [`Pad`] or [`Pack`]:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_headroom::data::{Loader, TensorDataset, stack};
//!
//! let x = Tensor::zeros((100, 8), DType::F32, &Device::Cpu)?; // [samples, features]
//! let y = Tensor::arange(0u32, 100, &Device::Cpu)?;
//! let samples = TensorDataset::new((x, y))?;
//! let loader = Loader::builder(samples, stack).batch(32).shuffle(7).epochs(2).workers(2).build()?;
//! let mut seen = 0;
//! for batch in loader {
//!     let batch = batch?;
//!     let (x, y) = &*batch; // [32, 8] and [32]; [4, 8] and [4] at the end of an epoch
//!     assert_eq!(x.dim(0)?, y.dim(0)?);
//!     seen += batch.indices.len();
//! }
//! assert_eq!(seen, 200); // each sample once in each epoch
//! # Ok::<(), candle_headroom::Error>(())
//! ```
//!
//! # What is guaranteed
//! - **The order is a function.** The samples of a batch follow from the number of samples, the seed, the epoch and the options of batches.
//!   The numbers of threads and ranks do not change them. A shuffled order is a pseudo-random permutation that is computed for each place by
//!   itself (a Feistel network, Luby and Rackoff 1988, with cycle walking, Black and Rogaway 2002). So no list of indices is stored, and a
//!   [`Position`] is a few numbers however large the dataset is. With [`blocks`](LoaderBuilder::blocks) blocks of samples are permuted, and then
//!   the samples of a window of blocks.
//! - **Each sample once.** In an epoch each sample is in one batch and on one rank, also in a run that was interrupted and resumed.
//!   [`drop_last`](LoaderBuilder::drop_last), [`skip_failures`](LoaderBuilder::skip_failures) and [`mixture`](LoaderBuilder::mixture) are the
//!   options that change this.
//! - **Resuming counts updates.** A trainer saves the position after the last batch that an update has consumed. Batches that were only read
//!   ahead, or whose update failed, come again.
//! - **Changed data is an error.** A position holds a [fingerprint](crate::batch::Fingerprint) of the dataset's name and length, the order and
//!   the batches. A resumed loader compares it, and so do the ranks of a group before each update. The content of samples is not compared.
//! - **Errors name the sample.** A sample that cannot be read is a [`DataError::Sample`] with its dataset and
//!   index, and a panic in a dataset or a collate function is an error too. The loader then goes on with the next batch. A file that changes
//!   while it is open is an error, so no batch mixes two versions of it.
//! - **Memory is bounded.** Batches are read ahead up to a [number](LoaderBuilder::ahead), up to a number of
//!   [bytes](LoaderBuilder::ahead_bytes), and while the host's [memory limit](LoaderBuilder::memory) leaves room. The batch that training waits
//!   for is always read.

pub(crate) mod cache;
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
mod starts;
mod tensors;
mod tokens;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Component, Path, PathBuf};

use crate::error::{DataError, Result};
use crate::files;
use crate::fixed_file::FixedFile;

#[cfg(feature = "parquet")]
pub use self::parquet::{ParquetBuilder, ParquetDataset};
pub use self::safetensors::{SafetensorsBuilder, SafetensorsDataset};
pub use crate::batch::Position;
#[cfg(feature = "object-store")]
pub use crate::remote::Remote;
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

/// Finds the files of a pattern, in the order of their names, byte by byte: `part-10` comes before `part-2`. `*` stands for any part of a name,
/// `?` for a character, `[ab]` for one of some, and `**` for any folders. As in shells, a dot at the beginning of a name is only found by a dot.
///
/// ```
/// use candle_headroom::data::{Dataset, Tokens, glob};
///
/// let folder = tempfile::tempdir()?;
/// for name in ["b.bin", "a.bin"] {
///     std::fs::write(folder.path().join(name), [name.as_bytes()[0], 0])?;
/// }
/// let files = glob(folder.path().join("*.bin"))?;
/// let tokens = Tokens::builder(files).window(1).open()?;
/// assert_eq!([tokens.get(0)?.to_vec()?, tokens.get(1)?.to_vec()?], [[97], [98]]); // a, b
/// assert!(glob(folder.path().join("*.txt")).is_err());
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Errors
/// [`DataError::File`] if no file matches, if the pattern is malformed or a URL, or if a folder cannot be read.
pub fn glob(pattern: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let pattern = pattern.as_ref();
    let wrong = |problem: String| DataError::file(pattern, None, problem);
    let text = pattern.to_str();
    let text = text.ok_or_else(|| wrong("is a pattern that is not UTF-8".to_owned()))?;
    if files::url(pattern).is_some() {
        let problem = "is a URL, and objects are not listed: name each of them";
        return Err(wrong(problem.to_owned()).into());
    }
    let found = glob::glob(text).map_err(|error| wrong(format!("is no pattern: {error}")))?;
    let found = found.collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| {
        let path = error.path().to_owned();
        DataError::io(&path, None, error.into())
    })?;
    // `glob` has an option for this, which leaves out what begins with a dot in any case, and panics at names that are not UTF-8.
    let hidden = |path: &Path| path.components().filter(is_hidden).count();
    let is_asked = |path: &PathBuf| path.is_file() && hidden(path) == hidden(pattern);
    let mut matching: Vec<_> = found.into_iter().filter(is_asked).collect();
    // Paths compare by their folders, so `a/1` would come before `a-b/1`.
    matching.sort_by(|one, other| one.as_os_str().cmp(other.as_os_str()));
    match matching.is_empty() {
        true => Err(wrong("matches no file".to_owned()).into()),
        false => Ok(matching),
    }
}

fn is_hidden(part: &Component<'_>) -> bool {
    matches!(part, Component::Normal(name) if name.as_encoded_bytes().starts_with(b"."))
}

/// The name of a dataset of files.
fn name_of<'a>(mut paths: impl ExactSizeIterator<Item = &'a Path>) -> String {
    let first = paths.next().unwrap_or(Path::new("")).display();
    match paths.len() {
        0 => first.to_string(),
        more => format!("{first} and {more} more"),
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
