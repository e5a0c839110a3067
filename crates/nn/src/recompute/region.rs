//! Puts a region into candle's graph, as an operation whose sources are its inputs and each Var that it uses.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor};
use parking_lot::Mutex;

use super::error::{RecomputeError, SecondRun};
use super::offload::{self, Inputs, Kept};
use super::scope;
use crate::graph::{Gradient, Mail, backward, operation};
use crate::scope::current;

/// Runs a region and returns its outputs, of which the graph knows where gradients go, but keeps no activations.
pub(super) fn record(inputs: Vec<Tensor>, run: Run) -> Result<Vec<Tensor>> {
    let given: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
    let kept = Inputs::new(&inputs, &given)?;
    let surroundings = current();
    let place = surroundings.as_ref().map(|s| s.place());
    let outputs = scope::region(|| run(&given))?;
    kept.left()?;
    drop(given);
    let _copies = surroundings.as_ref().map(|s| s.copies());
    let vars = vars_of(&outputs);
    // The graph of the activations goes before the outputs are copied. Nothing tells whether the closure kept one of them
    // or returned a tensor of another, so their storage cannot be moved.
    let outputs: Vec<_> = (outputs.into_iter())
        .map(|output| output.detach())
        .collect();
    let needs: Vec<bool> = inputs.iter().map(leads_to_var).collect();
    let tracked = inputs.iter().filter(|input| leads_to_var(input));
    let sources: Vec<_> = tracked.chain(&vars).collect();
    if sources.is_empty() {
        return Ok(outputs);
    }
    let outputs = outputs.into_iter();
    let outputs = outputs.map(|output| match output.dtype().is_float() {
        true => output.force_contiguous(),
        false => Ok(output),
    });
    let outputs = outputs.collect::<Result<Vec<_>>>()?;
    let region = Region {
        vars: vars.clone(),
        needs,
        run,
        place,
    };
    put(&sources, outputs, move |arrived, first, is_last| {
        let inputs = kept.kept.iter().zip(&region.needs);
        let inputs = inputs.map(|(input, needs)| match needs {
            true => input.variable(),
            false => input.get(),
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        if is_last {
            kept.free();
        }
        kept.fetch_before();
        region.differentiate(&inputs, arrived, first)
    })
}

/// Puts the outputs of a region into the graph. `differentiate` is given the gradients of those that have one, the outputs of the first run, and
/// whether no other backward pass will come.
pub(super) fn put(
    sources: &[&Tensor],
    outputs: Vec<Tensor>,
    differentiate: impl Fn(Mail, &[Kept], bool) -> Result<Mail> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    let made_in = current().map(|surroundings| surroundings.work());
    let first = Arc::new(OnceLock::<Vec<Kept>>::new());
    let known = Arc::clone(&first);
    let backward = move |arrived: Mail, _: &[Tensor]| {
        if !arrived.iter().any(Option::is_some) {
            return Ok(Mail::new());
        }
        let first = known.get().map_or(&[][..], Vec::as_slice);
        let is_last = current().is_some_and(|s| s.walks_back_last() && Some(s.work()) == made_in);
        let done = scope::differentiated(|| differentiate(arrived, first, is_last));
        if is_last {
            first.iter().for_each(Kept::free);
        }
        done.map_err(SecondRun::mark)
    };
    // The region keeps them itself, since they may leave the device.
    let keeps_outputs = false;
    let backward = Box::new(backward);
    let outputs = operation("recompute", sources, outputs, keeps_outputs, backward)?;
    let are_compared = outputs.iter().any(|output| will_compare(output.device()));
    first.get_or_init(|| offload::outputs(&outputs, are_compared));
    Ok(outputs)
}

/// Whether a gradient of this input is needed.
pub(super) fn leads_to_var(input: &Tensor) -> bool {
    input.track_op() && input.dtype().is_float()
}

/// The closure of a region.
pub(super) type Run = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// What is needed to run a region again, besides its inputs.
pub(super) struct Region<R> {
    /// Whether the gradient of each input is needed.
    pub needs: Vec<bool>,
    pub vars: Vec<Tensor>,
    pub run: R,
    /// Where it began, for the surroundings.
    pub place: Option<u64>,
}

impl<R: Fn(&[Tensor]) -> Result<Vec<Tensor>>> Region<R> {
    /// Runs the region again and returns the gradients of its sources. The inputs whose gradients are needed are variables that nobody else has.
    /// `arrived` are the gradients of the outputs of the `first` run.
    pub fn differentiate(&self, inputs: &[Tensor], arrived: Mail, first: &[Kept]) -> Result<Mail> {
        let outputs = {
            let _place = current()
                .zip(self.place)
                .map(|(s, place)| s.runs_again(place));
            scope::again(|| (self.run)(inputs))?
        };
        let known: Vec<_> = self.vars.iter().chain(inputs).map(Tensor::id).collect();
        let vars = vars_of(&outputs);
        if let Some(var) = vars.iter().find(|var| !known.contains(&var.id())) {
            return Err(RecomputeError::differs(format!(
                "used a Var of shape {:?} that its first run did not use: make the choice of layers outside, or give the region the tensors that it depends on",
                var.shape()
            )));
        }
        let root = root(first, &outputs, arrived)?;
        drop(outputs);
        let mut store = match &root {
            Some(root) => backward(root)?,
            None => GradStore::default(),
        };
        drop(root);
        let tracked = inputs.iter().zip(&self.needs);
        let tracked = tracked.filter_map(|(input, needs)| needs.then_some(input));
        let sources = tracked.chain(&self.vars);
        // Detached, since a gradient may refer to the graph that it comes from. The store also holds those of constants.
        Ok(sources
            .map(|source| Some(Gradient::alone(store.remove(source)?.detach())))
            .collect())
    }
}

/// A scalar whose gradients are, for each output, the one that arrived; `None` if no output leads to a Var.
fn root(first: &[Kept], again: &[Tensor], arrived: Mail) -> Result<Option<Tensor>> {
    if again.len() < first.len() {
        let (first, again) = (first.len(), again.len());
        return Err(RecomputeError::differs(format!(
            "returned {again} tensors after {first} in its first run: its closure may change nothing that it depends on"
        )));
    }
    let (mut sources, mut gradients) = (Vec::new(), Mail::new());
    for (gradient, (first, again)) in arrived.into_iter().zip(first.iter().zip(again)) {
        let Some(gradient) = gradient else {
            continue;
        };
        check(first, again)?;
        if again.track_op() {
            sources.push(again);
            gradients.push(Some(gradient));
        }
    }
    let Some(source) = sources.first() else {
        return Ok(None);
    };
    let root = Tensor::zeros((), DType::F32, source.device())?;
    // Taken, since there is one backward pass.
    let gradients = Mutex::new(gradients);
    let backward = move |_: Mail, _: &[Tensor]| Result::Ok(std::mem::take(&mut *gradients.lock()));
    let roots = operation(
        "recompute-root",
        &sources,
        vec![root],
        false,
        Box::new(backward),
    )?;
    Ok(roots.into_iter().next())
}

/// The Vars that tensors lead to.
pub(super) fn vars_of(tensors: &[Tensor]) -> Vec<Tensor> {
    let mut seen = HashSet::new();
    let nodes = tensors.iter().flat_map(Tensor::sorted_nodes);
    let vars = nodes.filter(|node| node.is_variable() && seen.insert(node.id()));
    vars.cloned().collect()
}

// Whether the second run of a region gave what the first one did.

/// Elements that are compared at a time, since a comparison happens where memory is short.
const AT_ONCE: usize = 1 << 16;
/// On a device that the host has to wait for, so many outputs of a thread are compared: what differs differs from the start.
const FIRST: u32 = 8;

thread_local! {
    static COMPARED: Cell<u32> = const { Cell::new(0) };
}

/// Whether outputs of a region on this device are compared with those of its second run.
fn will_compare(device: &Device) -> bool {
    device.is_cpu() || COMPARED.get() < FIRST
}

/// Fails if an output of the second run has another shape, type or other values than that of the first. Values may differ by
/// some roundings, since a sum may be split among threads in another way.
fn check(first: &Kept, again: &Tensor) -> Result<()> {
    if (&first.shape, first.dtype) != (again.shape(), again.dtype()) {
        return Err(RecomputeError::differs(format!(
            "returned {:?} after {:?} in its first run: its closure may change nothing that it depends on, such as a key-value cache",
            (again.shape(), again.dtype()),
            (&first.shape, first.dtype),
        )));
    }
    // One whose first value is gone was not to be compared by the thread that ran it.
    if !will_compare(again.device()) || first.is_gone() {
        return Ok(());
    }
    if !again.device().is_cpu() {
        COMPARED.set(COMPARED.get() + 1);
    }
    let roundings = match first.dtype {
        DType::BF16 => 4. / 128.,
        DType::F16 => 4. / 1024.,
        _ => 1e-3,
    };
    let (first, again) = (first.get()?.flatten_all()?, again.detach().flatten_all()?);
    let (mut off, mut scale) = (0f64, 0f64);
    for start in (0..first.elem_count()).step_by(AT_ONCE) {
        let len = AT_ONCE.min(first.elem_count() - start);
        let (first, again) = (first.narrow(0, start, len)?, again.narrow(0, start, len)?);
        // NaN counts as equal: the loss shows it.
        off = off.max(largest((again - &first)?)?);
        scale = scale.max(largest(first)?);
    }
    match off > roundings * scale {
        true => Err(RecomputeError::differs(format!(
            "returned values that differ by up to {off:.3e} from those of its first run, which reach {scale:.3e}: use the layers of `candle_headroom::nn`, whose dropout is the same again, and seed other randomness"
        ))),
        false => Ok(()),
    }
}

fn largest(tensor: Tensor) -> Result<f64> {
    let largest = tensor.abs()?.max(0)?;
    largest.to_dtype(DType::F64)?.to_scalar()
}
