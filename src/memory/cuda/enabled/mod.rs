mod mark;
mod memory;
mod pool;
mod pools;
mod work;

pub(crate) use mark::Mark;
pub(super) use memory::open;
pub(crate) use pool::Handle;
pub(crate) use work::{PageLocked, drain, while_dropping};
pub(super) use work::{synchronize, trim};
