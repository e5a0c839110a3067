//! Exact attention that keeps little, and candle's module [`candle_nn::attention`] with backward passes.
//!
//! [`attention()`] computes softmax(q · kᵀ · scale) · v for a part of the queries at a time, and again in the backward pass. So memory
//! grows with the number of positions and not with its square, and nothing is approximated: values and gradients are those of plain
//! operations, within rounding. On the CPU they do not depend on the number of threads, unless a mask gets a gradient. The other
//! functions have candle's names and signatures and call it, for any batch size and on any device.

mod chunks;
mod exact;
mod flash;
mod rule;
mod tiles;

pub use candle_nn::attention::*;

pub use exact::attention;
pub use flash::flash_attn_varlen_unfused as flash_attn_varlen_cpu;
pub use flash::{flash_attn, flash_attn_varlen_unfused};
pub use rule::Attention;

/// [`candle_nn::attention::cpu_flash`] with backward passes, on any device.
pub mod cpu_flash {
    pub use crate::attention::flash::flash_attn;

    /// [`candle_nn::attention::cpu_flash::causal`] with a backward pass. `causal_decode_f32_interleaved`, of slices, has none.
    pub mod causal {
        pub use candle_nn::attention::cpu_flash::causal::*;

        pub use crate::attention::flash::run_causal_attn_cpu;
    }

    /// [`candle_nn::attention::cpu_flash::standard`] with a backward pass.
    pub mod standard {
        pub use crate::attention::flash::run_flash_attn_cpu;
    }

    /// [`candle_nn::attention::cpu_flash::varlen`] with a backward pass.
    pub mod varlen {
        pub use crate::attention::flash::flash_attn_varlen_unfused as flash_attn_varlen_cpu;
    }
}

/// [`candle_nn::attention::varlen`] with a backward pass.
pub mod varlen {
    pub use crate::attention::flash::flash_attn_varlen_unfused;
}
