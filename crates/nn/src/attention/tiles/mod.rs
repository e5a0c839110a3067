//! Attention on the CPU: tiles of scores that stay in a core's cache, and all threads.

mod backward;
mod forward;
mod rows;

pub use backward::backward;
pub use forward::forward;
