//! Regions whose activations are not kept: they are computed again in the backward pass.
//!
//! A region is one operation of the graph. Its sources are its inputs and each Var that its closure uses; the graph keeps these, the
//! outputs and the closure. The second run has the random numbers of the first one, and is compared with it, so a closure that does
//! something else is an error and not a wrong gradient.

mod error;
mod offload;
mod region;
mod scope;
mod tensors;
mod tiles;

use candle_core::Result;

use crate::seed::{derive, seeded};
pub use error::{RecomputeError, SecondRun};
pub use offload::{Offload, OffloadStats};
use region::record;
pub(crate) use scope::note_logits;
pub use scope::{Held, Watched, is_recomputing, watch};
pub use tensors::{RegionInputs, RegionOutputs};
pub use tiles::recompute_tiled;

/// Runs `f` without keeping its activations: only inputs and outputs are kept, and the backward pass runs `f` again to differentiate it.
///
/// Use it for each block of a deep model. In place of the activations of all blocks, memory then holds one tensor for each block
/// and the activations of a single block, at the price of one more forward pass. PyTorch calls this activation checkpointing
/// (Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174).
///
/// `inputs` are `&Tensor`, a tuple of up to six of them, an array, or a slice, and `f` receives the same. It returns a tensor, a tuple, an
/// array or a `Vec`. Gradients arrive at the inputs and at every Var that `f` uses, by `loss.backward()` as well as by the trainers.
/// Regions may be nested, may share Vars, and may be mixed with layers outside of regions.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Linear, Module, VarBuilder, VarMap, linear, recompute};
///
/// # fn main() -> candle_core::Result<()> {
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let blocks: Vec<Linear> = (0..4).map(|i| linear(8, 8, vb.pp(i))).collect::<Result<_, _>>()?;
///
/// let mut xs = Tensor::ones((2, 8), DType::F32, &Device::Cpu)?;
/// for block in &blocks {
///     let block = block.clone(); // shares the weights
///     xs = recompute(&xs, move |xs| block.forward(xs)?.gelu())?;
/// }
/// let gradients = xs.sqr()?.mean_all()?.backward()?;
/// assert!(varmap.all_vars().iter().all(|var| gradients.get(var).is_some()));
/// # Ok(())
/// # }
/// ```
///
/// # In a trainer
/// A trainer decides whether marked regions are recomputed: `Recompute` of candle-headroom. In a loop of your own they always are.
///
/// # What `f` must hold to
/// It runs twice and has to compute the same both times.
/// - Randomness from this module, such as [`Dropout`](crate::Dropout), is the same again: the region takes a seed from the
///   [scope](crate::seeded) around it and runs `f` within that. Other randomness differs, as of `Tensor::rand` and of candle-nn's own
///   dropout, and the gradients would be wrong.
/// - Vars that it uses do not change between the forward and the backward pass.
/// - [`BatchNorm`](crate::BatchNorm) updates its running statistics in the first run only. A layer of your own with state asks
///   [`is_recomputing`]; a trainer of candle-headroom shows the second run its named buffers as they were, and keeps
///   what the first run made of them.
/// - All of it runs on the calling thread, and its tensors are on one device.
/// - Tensors that `f` captures and that depend on Vars get their gradients too, but what leads to them is differentiated
///   for each region again: better pass them as inputs.
///
/// [`Offload`] moves the inputs of regions to the host until they are needed, and [`recompute_tiled`] runs a region for some tokens at a time.
///
/// [`linear_cross_entropy`](crate::loss::linear_cross_entropy) belongs outside: it computes its gradients in the forward pass, so
/// those of the first run would be dropped.
///
/// # Errors
/// Those of `f`. In the backward pass also [`RecomputeError`] if the second run returns other
/// shapes or types, reaches other Vars, or other values. Values are compared on the CPU, and on a GPU for the first 8 regions of a
/// thread, since that waits for the device. Any other error of the second run is marked as a [`SecondRun`]: for candle-headroom, memory
/// that runs out there does so in the phase `recompute`, and its trainers retry it.
pub fn recompute<I, O, F>(inputs: I, f: F) -> Result<O>
where
    I: RegionInputs,
    O: RegionOutputs,
    F: for<'a> Fn(I::Given<'a>) -> Result<O> + Send + Sync + 'static,
{
    let (seed, tensors) = (derive(), inputs.tensors());
    if scope::keeps() {
        let kept = || Ok(seeded(seed, || f(I::give(&tensors)?))?.into_tensors());
        return O::from_tensors(scope::region(kept)?);
    }
    let run = move |tensors: &[_]| Ok(seeded(seed, || f(I::give(tensors)?))?.into_tensors());
    O::from_tensors(record(tensors, Box::new(run))?)
}
