//! Which samples come next?

mod batching;
mod check;
mod collate;
mod dataset;
mod loaded;
mod loader;
mod order;
mod sources;
mod stage;
mod tensors;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use crate::batch::Position;
pub use check::{Check, check};
pub use collate::{Pack, Packed, Pad, Padded, Piece, stack};
pub use dataset::{Concat, Dataset, Items, TensorDataset};
pub use loaded::Loaded;
pub use loader::{Continued, Epoch, Epochs, Loader, LoaderBuilder, LoaderStats, Source, Stream};
pub use sources::*;
pub use tensors::Tensors;

/// Runs the user's code; a panic comes back as its message.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("not a text").to_owned()
}
