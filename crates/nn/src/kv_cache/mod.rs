//! Caches of keys and values of [`candle_nn::kv_cache`] through which gradients arrive.
//!
//! candle's caches write new positions into a buffer in place or detach them, so that no gradient arrives at the keys and values of
//! a model that goes through them, even if the cache is empty. These have the same names and methods and return the same values:
//!
//! - What `append` returns carries the graph of the new positions. Those of earlier calls are constants, and a cache keeps no graph
//!   from one call to the next.
//! - An empty cache copies nothing: the new keys and values come back as they are. Another one copies all positions once, and shares the
//!   memory of what it returned: it has no buffer of `max_seq_len` positions, and writes to nothing that it has returned. So a gradient
//!   that is computed from the keys, as that of the queries, sees them as they were.
//! - [`ScatteredKvCache`] has rings from the start. If keys or values lead to a Var, it returns copies of them; if not, the rings
//!   themselves, which the next append overwrites: copy them if a backward pass comes after it.
//!
//! They also accept strided keys and values. An append that failed can be repeated.
//!
//! [`InterleavedKvCache`] and [`RawInterleavedKvCache`] are candle's own. They serve quantized models on the CPU, and no gradient
//! passes through them.

mod concat;
mod ring;
mod scattered;

pub use candle_nn::kv_cache::*;

pub use concat::ConcatKvCache;
pub use ring::{Cache, KvCache, Pair, Ring, RotatingCache, RotatingKvCache};
pub use scattered::{ScatteredCacheBuilder, ScatteredKvCache};
