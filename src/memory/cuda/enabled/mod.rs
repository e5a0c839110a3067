mod cause;
mod current;
mod driver;
mod events;
mod memory;
mod open;
mod pool;
mod pools;
mod recovery;

pub(crate) use events::Events;
pub(super) use open::open;
pub(super) use recovery::{recover, synchronize};
