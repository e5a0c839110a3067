//! The randomness of a thread: which draw comes next, and whether dropout is off.
//!
//! A draw is a seed and a number. The same draw gives the same random numbers, on the CPU and on CUDA, so a backward pass computes a
//! mask again and keeps none. Scopes nest, and end with the closure that they are for, also by a panic.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

use crate::scope::OnDrop;

/// The randomness of one call of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    pub seed: u64,
    /// Number of draws from this seed before.
    pub call: u64,
}

thread_local! {
    /// The next draw of the scope, and whether dropout is off.
    static SCOPE: Cell<(Option<Draw>, bool)> = const { Cell::new((None, false)) };
}

/// Runs `f` with the randomness of this module's operations, such as [`dropout`](crate::ops::dropout), seeded: on this thread, the
/// n-th call inside depends on `seed` and n only, so running `f` again gives the same numbers, on the CPU and on CUDA.
///
/// The trainers of candle-headroom and its `process_batches` run the closure for a micro-batch with `MicroBatch::seed`, so a retried
/// micro-batch gets the same masks without any code of yours. Its `GradientAccumulator` does not see the forward pass: there, use this
/// function.
///
/// A scope within another one begins anew, and the outer one then goes on where it was. Other threads that `f` starts are not seeded.
/// [`recompute`](crate::recompute()) gives each region a scope of its own.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{self as nn, Dropout};
///
/// # fn main() -> candle_core::Result<()> {
/// let xs = Tensor::ones(1000, DType::F32, &Device::Cpu)?;
/// let run = || nn::seeded(7, || Dropout::new(0.5).forward(&xs, true));
/// assert_eq!(run()?.to_vec1::<f32>()?, run()?.to_vec1::<f32>()?);
/// # Ok(())
/// # }
/// ```
pub fn seeded<T>(seed: u64, f: impl FnOnce() -> T) -> T {
    let first = Some(Draw { seed, call: 0 });
    within((first, is_frozen()), f)
}

/// Runs `f` without dropout on this thread. Masks are drawn by position, so a sample has another one in another micro-batch; without
/// them, results can be compared between micro-batches.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Dropout, scope::frozen};
///
/// let x = Tensor::ones(4, DType::F32, &Device::Cpu)?;
/// let y = frozen(|| Dropout::new(0.5).forward(&x, true))?;
/// assert_eq!(y.to_vec1::<f32>()?, [1.; 4]); // nothing is dropped
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn frozen<T>(f: impl FnOnce() -> T) -> T {
    let (draw, _) = SCOPE.get();
    within((draw, true), f)
}

fn within<T>(scope: (Option<Draw>, bool), f: impl FnOnce() -> T) -> T {
    let outer = SCOPE.replace(scope);
    let _restored = OnDrop(|| SCOPE.set(outer));
    f()
}

/// Whether [`frozen`] runs on this thread.
pub fn is_frozen() -> bool {
    SCOPE.get().1
}

/// Whether [`seeded`] runs on this thread.
pub fn is_seeded() -> bool {
    SCOPE.get().0.is_some()
}

/// The seed of a scope of its own for the next draw.
pub fn derive() -> u64 {
    let Draw { seed, call } = draw();
    mix(seed ^ mix(call.wrapping_add(1)))
}

/// The next draw of the thread's scope; without a scope a fresh seed.
pub fn draw() -> Draw {
    match SCOPE.get() {
        (Some(draw), is_frozen) => {
            let call = draw.call.wrapping_add(1);
            SCOPE.set((Some(Draw { call, ..draw }), is_frozen));
            draw
        }
        (None, _) => Draw {
            seed: RandomState::new().hash_one(0),
            call: 0,
        },
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
