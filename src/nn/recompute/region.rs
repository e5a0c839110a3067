//! Puts a region into candle's graph.
//!
//! candle's operations have at most three inputs and one output, but a region has an input for each Var that it uses, besides its
//! own. So it is a chain: a *link* joins one source of gradients and the link before it, and has a single zero as its value. Each
//! output is an operation on the last link. The backward pass visits the outputs, then the links from the last to the first:
//! outputs leave their gradients at the region, the last link differentiates it, and each link returns the gradient of its source.

use std::collections::HashSet;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

use super::differentiate::{Region, Run};
use super::scope;
use crate::nn::graph::record as node;

const NAME: &str = "recompute";

/// Runs a region and returns its outputs, of which the graph knows where gradients go, but keeps no activations.
pub(super) fn record(inputs: Vec<Tensor>, run: Run) -> Result<Vec<Tensor>> {
    let given: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
    let outputs = scope::region(|| run(&given))?;
    let vars = vars_of(&outputs);
    // The graph of the activations goes before the outputs are copied. Nothing tells whether the closure kept one of them
    // or returned a tensor of another, so their storage cannot be moved.
    let outputs: Vec<_> = (outputs.into_iter())
        .map(|output| output.detach())
        .collect();
    let leads_to_var = |input: &Tensor| input.track_op() && input.dtype().is_float();
    let needs: Vec<bool> = inputs.iter().map(leads_to_var).collect();
    let tracked = inputs.into_iter().filter(leads_to_var);
    let sources: Vec<_> = tracked.chain(vars.iter().cloned()).collect();
    let Some(source) = sources.first() else {
        return Ok(outputs);
    };
    let mut link = Tensor::zeros((), DType::F32, source.device())?;
    let region = Arc::new(Region::new(given, needs, vars, run));
    for (index, source) in sources.iter().enumerate() {
        let (region, value) = (Arc::clone(&region), link.zeros_like()?);
        link = node(NAME, [source, &link], value, move |given| {
            let [source, link] = given.inputs;
            let gradient = region.gradient_of_source(index)?;
            let gradient = gradient.map_or_else(|| source.zeros_like(), Ok)?;
            Ok([Some(gradient), Some(link)])
        })?;
    }
    let outputs = outputs.into_iter().enumerate();
    let recorded = outputs.map(|(index, output)| {
        if !output.dtype().is_float() {
            return Ok(output);
        }
        let region = Arc::clone(&region);
        node(NAME, [&link], output.force_contiguous()?, move |given| {
            region.arrived(index, given.gradient, given.output);
            let [link] = given.inputs;
            Ok([Some(link)])
        })
    });
    recorded.collect()
}

/// The Vars that tensors lead to.
pub(super) fn vars_of(tensors: &[Tensor]) -> Vec<Tensor> {
    let mut seen = HashSet::new();
    let nodes = tensors.iter().flat_map(Tensor::sorted_nodes);
    let vars = nodes.filter(|node| node.is_variable() && seen.insert(node.id()));
    vars.cloned().collect()
}
