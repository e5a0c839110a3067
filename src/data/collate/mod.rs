//! Makes a batch of samples.

mod bins;
mod pack;
mod packed;
mod pad;
mod padded;
mod stack;

pub use pack::Pack;
pub use packed::{Packed, Piece};
pub use pad::Pad;
pub use padded::Padded;
pub use stack::stack;
