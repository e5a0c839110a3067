mod current;
mod memory;
mod open;
mod pool;
mod pools;
mod work;

pub(super) use open::open;
pub(crate) use work::Event;
pub(super) use work::{synchronize, trim};
