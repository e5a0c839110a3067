//! Caches of keys and values of [`candle_nn::kv_cache`] through which gradients arrive.
//!
//! candle's caches write new positions into a buffer in place or detach them, so that no gradient arrives at the keys and values of
//! a model that goes through them, even if the cache is empty. These have the same names and methods and return the same values:
//!
//! - If neither keys nor values lead to a Var, they do what candle's do, in the same buffers. A tensor that a rotating or scattered
//!   cache returned then changes with the next append, as candle's does: see [below](#constant-keys-and-values).
//! - Otherwise what `append` returns carries the graph of the new positions. Those of earlier calls are constants. An empty cache
//!   copies nothing: the new keys and values come back as they are. A cache keeps no graph from one call to the next, and no buffer
//!   of `max_seq_len` positions: it shares the memory of what it returned. [`ScatteredKvCache`] has rings from the start and
//!   returns copies of them.
//!
//! # Constant keys and values
//!
//! A gradient that is computed from keys and values needs them as they were: that of the queries, for example, is computed from the
//! keys. If they lead to no Var, as those of a frozen layer or of a prompt, then [`RotatingCache`], [`RotatingKvCache`] and
//! [`ScatteredKvCache`] overwrite what they returned, and the backward pass silently computes wrong gradients from the new values.
//! So copy what they return if a backward pass comes after the next append:
//!
//! ```
//! use candle_core::{D, DType, Device, Tensor, Var};
//! use candle_headroom_nn::kv_cache::RotatingKvCache;
//!
//! let query = Var::ones((1, 1, 1, 8), DType::F32, &Device::Cpu)?;
//! let mut cache = RotatingKvCache::new(2, 4);
//! let mut scores = Vec::new();
//! for step in 0..9 {
//!     let new = Tensor::full(step as f32, (1, 1, 1, 8), &Device::Cpu)?;
//!     let (k, _) = cache.append(&new, &new)?;
//!     let k = k.copy()?; // the next append changes what was returned
//!     scores.push(query.matmul(&k.transpose(D::Minus1, D::Minus2)?)?.max(D::Minus1)?);
//! }
//! let gradients = Tensor::cat(&scores, 0)?.sum_all()?.backward()?;
//! let gradient = gradients.get(&query).expect("a gradient");
//! assert_eq!(gradient.flatten_all()?.to_vec1::<f32>()?, [36.; 8]); // 0 + 1 + … + 8
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! # Differences from candle's
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
