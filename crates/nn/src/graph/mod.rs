//! Puts tensors that were computed without a graph into candle's graph.
//!
//! An operation keeps what its closure holds, and computes a gradient only for inputs that lead to a Var. Recorded operations hand
//! gradients to each other; candle sees scalars, and allocates no tensors of zeros for sums. A backward pass that fails leaves nothing
//! behind that a later one would find.

mod gradient;
mod mailbox;
mod node;
mod operation;
mod origin;
mod pass;

#[cfg(test)]
mod tests;

use candle_core::{Error, Result, Storage, Tensor};

pub use gradient::Gradient;
pub use gradient::address;
pub use mailbox::Mail;
pub use operation::operation;
pub use origin::is_output;
use origin::unshared;
pub use pass::backward;

/// What a backward pass is given. All tensors are detached.
pub struct Backward<const N: usize> {
    pub inputs: [Tensor; N],
    pub output: Tensor,
    /// The gradient of the output, in the output's shape; any strides.
    pub gradient: Tensor,
    /// Whether the gradient of each input is asked for.
    pub needs: [bool; N],
}

impl<const N: usize> Backward<N> {
    /// Gradients of zeros.
    pub fn zeros(&self) -> Result<Gradients<N>> {
        let mut gradients = [const { None }; N];
        for ((gradient, input), needed) in gradients.iter_mut().zip(&self.inputs).zip(self.needs) {
            *gradient = needed.then(|| input.zeros_like()).transpose()?;
        }
        Ok(gradients)
    }
}

/// The gradient of each input; `None` where it is not asked for.
pub type Gradients<const N: usize> = [Option<Tensor>; N];

/// Makes `output` a function of `inputs` whose gradients `backward` computes, unless the output has no elements. Each is a new tensor, or
/// one of those that it is given: what the closure holds may not be returned, because gradients are added to each other in place.
///
/// The graph keeps the inputs and the output, and what the closure holds. The output's storage is moved, not copied, so no other
/// tensor may share it. Two cases are safe: an output that shares the storage of an input is copied, and so is one without
/// elements, for which many of candle's operations return an argument. If no input leads to a Var, the output is returned as it
/// is. Where an input is missing, any tensor outside the graph stands in for it.
pub fn record<const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    output: Tensor,
    backward: impl Fn(Backward<N>) -> Result<Gradients<N>> + Send + Sync + 'static,
) -> Result<Tensor> {
    if !needed(&inputs) {
        return Ok(output);
    }
    let kept = inputs.map(Tensor::detach);
    let held = kept.to_vec();
    let differentiate = Box::new(move |gradient, needs, outputs: &[Tensor]| {
        let [output] = outputs else {
            return Err(no_output(name));
        };
        let given = Backward {
            inputs: kept.clone(),
            output: output.clone(),
            gradient,
            needs,
        };
        match given.output.elem_count() {
            0 => given.zeros(),
            _ => backward(given),
        }
    });
    record_boxed(name, inputs, output, Some(held), differentiate)
}

/// As [`record`], for a backward pass that needs neither inputs nor output, besides what the closure holds. It is given the gradient of
/// the output, and whether the gradient of each input is asked for. The graph keeps only what the closure holds.
pub fn record_lean<const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    output: Tensor,
    backward: impl Fn(Tensor, [bool; N]) -> Result<Gradients<N>> + Send + Sync + 'static,
) -> Result<Tensor> {
    if !needed(&inputs) {
        return Ok(output);
    }
    let differentiate = Box::new(move |gradient, needs, _: &[Tensor]| backward(gradient, needs));
    record_boxed(name, inputs, output, None, differentiate)
}

/// Whether an input leads to a Var. It is asked first: without a graph, nothing is allocated for one.
fn needed(inputs: &[&Tensor]) -> bool {
    inputs.iter().any(|input| input.track_op())
}

/// What computes gradients, given that of the output, which of them are asked for, and the output if it is kept. It is boxed, so that what
/// takes it is compiled once for each number of inputs.
type Differentiate<const N: usize> =
    Box<dyn Fn(Tensor, [bool; N], &[Tensor]) -> Result<Gradients<N>> + Send + Sync>;

/// `kept` are the inputs that the backward pass is given besides the output; `None` if it needs neither.
fn record_boxed<const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    output: Tensor,
    kept: Option<Vec<Tensor>>,
    differentiate: Differentiate<N>,
) -> Result<Tensor> {
    let needs = inputs.map(Tensor::track_op);
    let output = unshared(output, &inputs)?;
    let sources = inputs.into_iter().filter(|input| input.track_op());
    let sources: Vec<_> = sources.collect();
    let keeps_output = kept.is_some();
    let backward = move |arrived: Mail, outputs: &[Tensor]| -> Result<Mail> {
        let Some(Some(given)) = arrived.into_iter().next() else {
            return Ok(Mail::new());
        };
        let held = kept.iter().flatten().chain(outputs);
        let mut others: Vec<_> = held.map(address).collect();
        if !given.is_alone {
            others.push(address(&given.tensor));
        }
        let gradients = differentiate(given.tensor, needs, outputs)?;
        Ok(mail(gradients, needs, others))
    };
    let outputs = vec![output];
    let outputs = operation(name, &sources, outputs, keeps_output, Box::new(backward))?;
    outputs.into_iter().next().ok_or_else(|| no_output(name))
}

/// The gradients that are asked for. Those whose storage is among the `others`, or that share one, are not changed later.
pub fn mail<const N: usize>(
    gradients: Gradients<N>,
    needs: [bool; N],
    mut others: Vec<*const Storage>,
) -> Mail {
    others.extend(gradients.iter().flatten().map(address));
    let gradients = gradients.into_iter().zip(needs);
    let gradients = gradients.filter_map(|(gradient, needed)| needed.then_some(gradient));
    let gradients = gradients.map(|gradient| {
        let tensor = gradient?;
        let storage = address(&tensor);
        // Once for itself.
        let is_alone = others.iter().filter(|other| **other == storage).count() == 1;
        Some(Gradient::new(tensor, is_alone))
    });
    gradients.collect()
}

fn no_output(name: &'static str) -> Error {
    Error::Msg(format!("{name}: no output")).bt()
}
