mod current;
mod memory;
mod open;
mod page_locked;
mod pool;
mod pools;
mod work;

pub(super) use open::open;
pub(crate) use page_locked::{PageLocked, while_dropping};
pub(crate) use work::drain;
pub(super) use work::{synchronize, trim};
