//! Exact attention that keeps little, and candle's module [`candle_nn::attention`] with backward passes.

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
