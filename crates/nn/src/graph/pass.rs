//! The backward pass that a thread runs, and the gradients of Vars that arrive in it without candle.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, TensorId};

use super::gradient::Gradient;
use crate::scope::OnDrop;

/// A thread's backward pass.
pub struct Pass {
    number: u64,
    kept: Option<Kept>,
}

/// What [`backward`] keeps of a graph: a pass over another one that begins within it is candle's alone.
pub struct Kept {
    nodes: HashSet<TensorId>,
    gradients: HashMap<TensorId, Gradient>,
}

thread_local! {
    /// The thread's backward pass, or one that began within it.
    static PASS: RefCell<Pass> = RefCell::new(Pass { number: next(), kept: None });
}

fn next() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// The number of the thread's pass.
pub fn number() -> u64 {
    PASS.with_borrow(|pass| pass.number)
}

/// Runs a backward pass, perhaps within another one. Both may reach the same operations.
pub fn within<T>(kept: Option<Kept>, backward: impl FnOnce() -> T) -> (T, Option<Kept>) {
    let number = next();
    let mut outer = Some(PASS.replace(Pass { number, kept }));
    let _restored = OnDrop(|| outer.take().into_iter().for_each(|outer| PASS.set(outer)));
    let result = backward();
    (result, PASS.with_borrow_mut(|pass| pass.kept.take()))
}

/// Computes the gradients of all Vars that a loss leads to, as [`Tensor::backward`], without a sum with zeros for each Var that a layer of
/// this crate uses.
///
/// candle begins the gradient of each tensor with zeros, to which it adds: for a Var a memset, a kernel, and two more tensors of its size
/// for a while. Here the gradient that a layer hands over is the Var's, and those of several layers are added in place. Gradients from
/// candle's own operations are added as before.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom_nn::{Linear, Module, backward};
///
/// let weight = Var::new(&[[2f32, 3.]], &Device::Cpu)?;
/// let x = Var::new(&[[5f32, 7.]], &Device::Cpu)?;
/// let y = Linear::new(weight.as_tensor().clone(), None).forward(&x)?;
/// let gradients = backward(&y.sum_all()?)?;
/// assert_eq!(gradients.get(&weight).expect("a gradient").to_vec2::<f32>()?, [[5., 7.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// Those of [`Tensor::backward`].
pub fn backward(loss: &Tensor) -> Result<GradStore> {
    let nodes = loss.sorted_nodes().into_iter().map(Tensor::id).collect();
    let gradients = HashMap::new();
    let (store, kept) = within(Some(Kept { nodes, gradients }), || loss.backward());
    let mut store = store?;
    for (id, gradient) in kept.into_iter().flat_map(|kept| kept.gradients) {
        let of_candle = store.get_id(id).cloned();
        let sum = match of_candle {
            Some(other) => gradient.plus(Gradient::alone(other))?,
            None => gradient,
        };
        store.insert_id(id, sum.tensor.detach());
    }
    Ok(store)
}

/// Keeps a gradient that `node` has for a Var. Returns it where candle has to take it: without [`backward`], for another tensor, or where it
/// shares memory.
pub fn keep(node: &Tensor, var: &Tensor, gradient: Gradient) -> Result<Option<Tensor>> {
    PASS.with_borrow_mut(|pass| {
        let (tensor, is_alone) = (&gradient.tensor, gradient.is_alone);
        let fits = (tensor.shape(), tensor.dtype()) == (var.shape(), var.dtype());
        let is_own = is_alone && tensor.is_contiguous() && fits && var.is_variable();
        let kept = pass.kept.as_mut().filter(|_| is_own);
        let Some(kept) = kept.filter(|kept| kept.nodes.contains(&node.id())) else {
            return Ok(Some(gradient.tensor));
        };
        let sum = match kept.gradients.remove(&var.id()) {
            Some(other) => other.plus(gradient)?,
            None => gradient,
        };
        kept.gradients.insert(var.id(), sum);
        Ok(None)
    })
}
