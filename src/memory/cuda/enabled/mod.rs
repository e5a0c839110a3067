mod current;
mod event;
mod memory;
mod open;
mod pool;
mod pools;
mod recovery;

pub(crate) use event::Event;
pub(super) use open::open;
pub(super) use recovery::{synchronize, trim};
