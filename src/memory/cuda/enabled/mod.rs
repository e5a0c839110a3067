mod memory;
mod pool;
mod pools;
mod work;

pub(super) use memory::open;
pub(crate) use pool::Handle;
pub(crate) use work::{Mark, PageLocked, drain, while_dropping};
pub(super) use work::{synchronize, trim};
