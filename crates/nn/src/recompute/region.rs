//! Puts a region into candle's graph, as an operation whose sources are its inputs and each Var that it uses.

use candle_core::{Result, Tensor};

use super::differentiate::{Region, Run, vars_of};
use super::error::SecondRun;
use super::scope;
use crate::graph::{Mail, operation};
use crate::scope::current;

/// Runs a region and returns its outputs, of which the graph knows where gradients go, but keeps no activations.
pub(super) fn record(inputs: Vec<Tensor>, run: Run) -> Result<Vec<Tensor>> {
    let given: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
    let surroundings = current();
    let place = surroundings.as_ref().map(|s| s.place());
    let outputs = scope::region(|| run(&given))?;
    let _copies = surroundings.as_ref().map(|s| s.copies());
    let vars = vars_of(&outputs);
    // The graph of the activations goes before the outputs are copied. Nothing tells whether the closure kept one of them
    // or returned a tensor of another, so their storage cannot be moved.
    let outputs: Vec<_> = (outputs.into_iter())
        .map(|output| output.detach())
        .collect();
    let leads_to_var = |input: &Tensor| input.track_op() && input.dtype().is_float();
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
    let region = Region::new(given, needs, vars.clone(), run, place);
    let backward = move |arrived: Mail, first: &[Tensor]| {
        if !arrived.iter().any(Option::is_some) {
            return Ok(Mail::new());
        }
        scope::differentiated(|| region.differentiate(arrived, first)).map_err(SecondRun::mark)
    };
    operation("recompute", &sources, outputs, backward)
}
