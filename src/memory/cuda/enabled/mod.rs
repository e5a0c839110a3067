mod cause;
mod driver;
mod memory;
mod open;
mod pool;
mod pools;
mod recovery;
mod seat;

pub(super) use open::open;
pub(crate) use recovery::{recover, settle};
