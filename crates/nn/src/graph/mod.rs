//! Puts tensors that were computed without a graph into candle's graph.

mod gradient;
mod mailbox;
mod operation;
mod origin;
mod pass;
mod take;
mod view;
mod zero;

#[cfg(test)]
mod tests;

use candle_core::{Error, Result, Storage, Tensor};

pub use gradient::Gradient;
use gradient::address;
pub use mailbox::Mail;
use operation::lean_operation;
pub use operation::operation;
pub use pass::within_pass;
use take::unshared;

/// What a backward pass is given. All tensors are detached.
pub struct Backward<const N: usize> {
    pub inputs: [Tensor; N],
    pub output: Tensor,
    /// The gradient of the output, in the output's shape; any strides.
    pub gradient: Tensor,
    /// Whether the gradient of each input is asked for.
    pub needs: [bool; N],
}

/// The gradient of each input; `None` where it is not asked for.
pub type Gradients<const N: usize> = [Option<Tensor>; N];

/// Makes `output` a function of `inputs` whose gradients `backward` computes. Each is a new tensor, or one of those that it is
/// given: what the closure holds may not be returned, because gradients are added to each other in place.
///
/// The graph keeps the inputs and the output, and what the closure holds. The output's storage is moved, not copied, so no other
/// tensor may share it. Two cases are safe: an output that shares the storage of an input is copied, and so is one without
/// elements, for which many of candle's operations return an argument. If no input leads to a Var, the output is returned as it
/// is.
pub fn record<const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    output: Tensor,
    backward: impl Fn(Backward<N>) -> Result<Gradients<N>> + Send + Sync + 'static,
) -> Result<Tensor> {
    record_boxed(name, inputs, output, Box::new(backward))
}

/// What computes gradients. It is boxed, so that what takes it is compiled once for each number of inputs.
type Differentiate<G, const N: usize> = Box<dyn Fn(G) -> Result<Gradients<N>> + Send + Sync>;

fn record_boxed<const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    output: Tensor,
    backward: Differentiate<Backward<N>, N>,
) -> Result<Tensor> {
    let needs = inputs.map(Tensor::track_op);
    if !needs.contains(&true) {
        return Ok(output);
    }
    let output = unshared(output, &inputs)?;
    let sources = inputs.into_iter().filter(|input| input.track_op());
    let sources: Vec<_> = sources.collect();
    let kept = inputs.map(Tensor::detach);
    let backward = move |arrived: Mail, outputs: &[Tensor]| {
        let (Some(Some(given)), [output]) = (arrived.into_iter().next(), outputs) else {
            return Ok(Mail::new());
        };
        let mut others: Vec<_> = kept.iter().chain([output]).map(address).collect();
        if !given.is_alone {
            others.push(address(&given.tensor));
        }
        let gradients = backward(Backward {
            inputs: kept.clone(),
            output: output.clone(),
            gradient: given.tensor,
            needs,
        })?;
        Ok(mail(gradients, needs, others))
    };
    only(name, operation(name, &sources, vec![output], backward)?)
}

/// As [`record`], for a backward pass that needs neither inputs nor output, besides what the closure holds. It is given the gradient of
/// the output, and whether the gradient of each input is asked for. The graph keeps only what the closure holds.
pub fn record_lean<const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    output: Tensor,
    backward: impl Fn(Tensor, [bool; N]) -> Result<Gradients<N>> + Send + Sync + 'static,
) -> Result<Tensor> {
    let backward = Box::new(move |(gradient, needs)| backward(gradient, needs));
    record_lean_boxed(name, inputs, output, backward)
}

fn record_lean_boxed<const N: usize>(
    name: &'static str,
    inputs: [&Tensor; N],
    output: Tensor,
    backward: Differentiate<(Tensor, [bool; N]), N>,
) -> Result<Tensor> {
    let needs = inputs.map(Tensor::track_op);
    if !needs.contains(&true) {
        return Ok(output);
    }
    let output = unshared(output, &inputs)?;
    let sources = inputs.into_iter().filter(|input| input.track_op());
    let sources: Vec<_> = sources.collect();
    let backward = move |arrived: Mail| {
        let Some(Some(given)) = arrived.into_iter().next() else {
            return Ok(Mail::new());
        };
        let others = (!given.is_alone).then(|| address(&given.tensor));
        let gradients = backward((given.tensor, needs))?;
        Ok(mail(gradients, needs, others.into_iter().collect()))
    };
    only(
        name,
        lean_operation(name, &sources, vec![output], backward)?,
    )
}

/// The gradients that are asked for. Those whose storage is among the `others`, or that share one, are not changed later.
fn mail<const N: usize>(
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
        Some(Gradient { tensor, is_alone })
    });
    gradients.collect()
}

fn only(name: &'static str, outputs: Vec<Tensor>) -> Result<Tensor> {
    let missing = || Error::Msg(format!("{name}: no output")).bt();
    outputs.into_iter().next().ok_or_else(missing)
}
