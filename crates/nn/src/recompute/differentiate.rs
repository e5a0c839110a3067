//! The backward pass of a region.

use std::collections::HashSet;

use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use parking_lot::Mutex;

use super::error::RecomputeError;
use super::{same, scope};
use crate::graph::{Gradient, Mail, operation, within_pass};
use crate::scope::current;

/// The closure of a region.
pub(super) type Run = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

/// What is needed to run a region again.
pub(super) struct Region {
    /// Outside the graph.
    inputs: Vec<Tensor>,
    /// Whether the gradient of each input is needed.
    needs: Vec<bool>,
    vars: Vec<Tensor>,
    run: Run,
    /// Where it began, for the surroundings.
    place: Option<u64>,
}

impl Region {
    pub(super) fn new(
        inputs: Vec<Tensor>,
        needs: Vec<bool>,
        vars: Vec<Tensor>,
        run: Run,
        place: Option<u64>,
    ) -> Self {
        Self {
            inputs,
            needs,
            vars,
            run,
            place,
        }
    }

    /// Runs the region again and returns the gradients of its sources. `arrived` are those of the outputs of the `first` run.
    pub(super) fn differentiate(&self, arrived: Mail, first: &[Tensor]) -> Result<Mail> {
        let inputs = self.inputs.iter().zip(&self.needs);
        let inputs = inputs.map(|(input, needs)| match needs {
            true => Ok(Var::from_tensor(input)?.into_inner()),
            false => Ok(input.clone()),
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let outputs = {
            let _place = current()
                .zip(self.place)
                .map(|(s, place)| s.runs_again(place));
            scope::again(|| (self.run)(&inputs))?
        };
        let known: Vec<_> = self.vars.iter().chain(&inputs).map(Tensor::id).collect();
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
            Some(root) => within_pass(|| root.backward())?,
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
fn root(first: &[Tensor], again: &[Tensor], arrived: Mail) -> Result<Option<Tensor>> {
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
        same::check(first, again)?;
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
    let backward = move |_: Mail, _: &[Tensor]| Ok(std::mem::take(&mut *gradients.lock()));
    let roots = operation("recompute-root", &sources, vec![root], backward)?;
    Ok(roots.into_iter().next())
}

/// The Vars that tensors lead to.
pub(super) fn vars_of(tensors: &[Tensor]) -> Vec<Tensor> {
    let mut seen = HashSet::new();
    let nodes = tensors.iter().flat_map(Tensor::sorted_nodes);
    let vars = nodes.filter(|node| node.is_variable() && seen.insert(node.id()));
    vars.cloned().collect()
}
