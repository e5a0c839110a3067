//! Who else works on this batch?

mod shares;

pub use shares::{Effort, Shares, SharesBuilder};
