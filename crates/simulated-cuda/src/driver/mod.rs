//! The driver API. Handles and device addresses are `u64` in the signatures, which are passed like pointers.

pub mod allocation;
pub mod context;
pub mod context_stack;
pub mod copying;
pub mod current;
pub mod device_query;
pub mod error_text;
pub mod event;
pub mod function;
pub mod host_memory;
pub mod launch;
pub mod memset;
pub mod module;
pub mod pointer;
pub mod pool;
pub mod setting;
pub mod stream;
