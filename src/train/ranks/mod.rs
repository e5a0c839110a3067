//! A trainer whose update is that of all ranks.
//!
//! Ranks meet once for each update. First each one tells the others, in host memory, whether it can update and with what weight: between two
//! meetings it cuts, retries and recomputes its samples as it likes. It also says which batches of which loaders it has, as a checksum; if these
//! differ, the ranks exchange the texts and none updates. If all can, they add their gradients, each scaled by its part of the
//! weight, and every rank applies the same update. If one cannot, none does.

mod data;
mod reduce;
mod shares;
mod start;
mod word;

pub(super) use data::Data;
pub(super) use reduce::Ranks;
pub(super) use start::join;
pub(super) use word::Turn;
