//! The backward pass of a region.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use parking_lot::Mutex;

use super::region::vars_of;
use super::scope;
use crate::batch::run_phase;
use crate::error::{Phase, RecomputeError};
use crate::nn::graph::record as node;

/// The closure of a region.
pub(super) type Run = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// The second run of a region may differ by this fraction of its largest value: a sum may be split among threads in another way.
const SAME: f64 = 1e-3;

/// What is needed to run a region again.
pub(super) struct Region {
    /// Outside the graph.
    inputs: Vec<Tensor>,
    /// Whether the gradient of each input is needed.
    needs: Vec<bool>,
    vars: Vec<Tensor>,
    run: Run,
    passes: Mutex<Vec<Pass>>,
}

/// A backward pass that has reached the region. There may be several: one that began within another region differentiates this one too
/// if the closure there captured an output of it.
struct Pass {
    id: u64,
    outputs: Vec<Arrived>,
    /// Gradients that the links have not returned yet.
    sources: Vec<Option<Tensor>>,
}

/// The gradient of an output.
struct Arrived {
    index: usize,
    gradient: Tensor,
    /// The output of the first run.
    output: Tensor,
}

thread_local! {
    /// The backward pass in progress on this thread; 0 for one that no region began.
    static PASS: Cell<u64> = const { Cell::new(0) };
}

impl Region {
    pub(super) fn new(inputs: Vec<Tensor>, needs: Vec<bool>, vars: Vec<Tensor>, run: Run) -> Self {
        Self {
            inputs,
            needs,
            vars,
            run,
            passes: Mutex::default(),
        }
    }

    /// Takes the gradient of an output.
    pub(super) fn arrived(&self, index: usize, gradient: Tensor, output: Tensor) {
        let (id, mut passes) = (PASS.get(), self.passes.lock());
        let arrived = Arrived {
            index,
            gradient,
            output,
        };
        match passes.iter_mut().find(|pass| pass.id == id) {
            Some(pass) => pass.outputs.push(arrived),
            None => passes.push(Pass {
                id,
                outputs: vec![arrived],
                sources: Vec::new(),
            }),
        }
    }

    /// Returns the gradient of a source: an input that needs one, or else a Var. The first call in a pass, which is for the last
    /// source, differentiates the region.
    pub(super) fn gradient_of_source(&self, index: usize) -> Result<Option<Tensor>> {
        let id = PASS.get();
        let mut passes = self.passes.lock();
        let Some(at) = passes.iter().position(|pass| pass.id == id) else {
            return Ok(None);
        };
        let mut pass = passes.swap_remove(at);
        drop(passes); // the region may be reached again from within
        if !pass.outputs.is_empty() {
            let outputs = std::mem::take(&mut pass.outputs);
            let differentiate = || scope::timed(|| self.differentiate(outputs));
            let sources = run_phase(Phase::Recompute, differentiate);
            pass.sources = sources.map_err(candle_core::Error::from)?;
        }
        let gradient = pass.sources.get_mut(index).and_then(Option::take);
        if index > 0 {
            self.passes.lock().push(pass);
        }
        Ok(gradient)
    }

    /// Runs the region again and returns the gradients of its sources.
    fn differentiate(&self, arrived: Vec<Arrived>) -> crate::Result<Vec<Option<Tensor>>> {
        let inputs = self.inputs.iter().zip(&self.needs);
        let inputs = inputs.map(|(input, needs)| match needs {
            true => Ok(Var::from_tensor(input)?.into_inner()),
            false => Ok(input.clone()),
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let outputs = scope::again(|| (self.run)(&inputs))?;
        let known: Vec<_> = self.vars.iter().chain(&inputs).map(Tensor::id).collect();
        let vars = vars_of(&outputs);
        if let Some(var) = vars.iter().find(|var| !known.contains(&var.id())) {
            return Err(RecomputeError::Var(var.shape().clone()).into());
        }
        let root = root(&outputs, arrived)?;
        drop(outputs);
        let mut store = match root.track_op() {
            true => within_pass(|| root.backward())?,
            false => GradStore::default(),
        };
        drop(root);
        let tracked = inputs.iter().zip(&self.needs);
        let tracked = tracked.filter_map(|(input, needs)| needs.then_some(input));
        let sources = tracked.chain(&self.vars);
        // Detached, since a gradient may refer to the graph that it comes from. The store also holds those of constants.
        Ok(sources
            .map(|source| Some(store.remove(source)?.detach()))
            .collect())
    }
}

/// A scalar whose gradient is, for each output, the one that arrived.
fn root(outputs: &[Tensor], arrived: Vec<Arrived>) -> crate::Result<Tensor> {
    let device = outputs.first().map_or(&Device::Cpu, Tensor::device);
    let mut root = Tensor::zeros((), DType::F32, device)?;
    for Arrived {
        index,
        gradient,
        output,
    } in arrived
    {
        let again = outputs.get(index).ok_or(RecomputeError::Outputs {
            first: index + 1,
            again: outputs.len(),
        })?;
        check_same(&output, again)?;
        drop(output);
        let value = root.zeros_like()?;
        root = node("recompute-root", [again, &root], value, move |given| {
            let [_, root] = given.inputs;
            Ok([Some(gradient.clone()), Some(root)])
        })?;
    }
    Ok(root)
}

/// Fails if the second run of a region gave another output. Values are compared on the CPU only, where that waits for nothing.
fn check_same(first: &Tensor, again: &Tensor) -> crate::Result<()> {
    if (first.shape(), first.dtype()) != (again.shape(), again.dtype()) {
        return Err(RecomputeError::Shape {
            first: (first.shape().clone(), first.dtype()),
            again: (again.shape().clone(), again.dtype()),
        }
        .into());
    }
    if !first.device().is_cpu() || first.elem_count() == 0 {
        return Ok(());
    }
    let largest = |t: Tensor| {
        t.abs()?
            .flatten_all()?
            .max(0)?
            .to_dtype(DType::F64)?
            .to_scalar::<f64>()
    };
    let off = largest((again.detach() - first)?)?;
    let scale = largest(first.clone())?;
    // False for NaN, which the loss will show.
    match off > SAME * scale {
        true => Err(RecomputeError::Values { off, scale }.into()),
        false => Ok(()),
    }
}

/// Runs a backward pass that begins within a region.
fn within_pass<T>(backward: impl FnOnce() -> T) -> T {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    struct Outer(u64);
    impl Drop for Outer {
        fn drop(&mut self) {
            PASS.set(self.0);
        }
    }
    let _outer = Outer(PASS.replace(NEXT.fetch_add(1, Relaxed)));
    backward()
}
