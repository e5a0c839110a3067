//! Is this machine fit for candle, and if not, what helps? See [`Environment::check`].
//!
//! The package `candle-headroom-environment`, which needs no candle.

#[doc(inline)]
pub use candle_headroom_environment::*;
