//! Caches of keys and values of [`candle_nn::kv_cache`] through which gradients arrive.
//!
//! candle's caches write new positions into a buffer in place or detach them, so that no gradient arrives at the keys and values of
//! a model that goes through them, even if the cache is empty. These have the same names and methods and return the same values:
//!
//! - If neither keys nor values lead to a Var, they do what candle's do, in the same buffers. A tensor that a rotating or scattered
//!   cache returned then changes with the next append, as candle's does.
//! - Otherwise what `append` returns carries the graph of the new positions. Those of earlier calls are constants. An empty cache
//!   copies nothing: the new keys and values come back as they are. A cache keeps no graph from one call to the next, and no buffer
//!   of `max_seq_len` positions: it shares the memory of what it returned. [`ScatteredKvCache`] has rings from the start and
//!   returns copies of them.
//!
//! They also accept strided keys and values. An append that failed can be repeated.
//!
//! [`InterleavedKvCache`] and [`RawInterleavedKvCache`] are candle's own. They serve quantized models on the CPU, and no gradient
//! passes through them.

mod cache;
mod concat;
mod kv;
mod overwrite;
mod rotating;
mod rotating_kv;
mod scattered;
mod stored;

pub use candle_nn::kv_cache::*;

pub use cache::Cache;
pub use concat::ConcatKvCache;
pub use kv::KvCache;
pub use rotating::RotatingCache;
pub use rotating_kv::RotatingKvCache;
pub use scattered::{ScatteredCacheBuilder, ScatteredKvCache};
