//! Makes a batch of samples.

mod pack;
mod pad;

use std::fmt::Display;

use candle_core::Tensor;

use crate::data::Tensors;
use crate::error::{BoxedError, invalid};
pub use pack::{Pack, Packed, Piece};
pub use pad::{Pad, Padded};

/// Stacks samples, for [`Loader::builder`](crate::data::Loader::builder): each tensor of the batch is `[samples, …]`, made of the
/// samples' tensors `[…]` at the same place.
///
/// A sample is a tensor, a tuple or a vector of tensors, or a type of your own that implements [`Tensors`]; the batch has the same type.
/// What else such a type holds is that of the first sample.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::data::{Items, Loader, stack};
///
/// let sample = |label: u32| -> candle_core::Result<_> {
///     let image = Tensor::zeros((1, 28, 28), DType::F32, &Device::Cpu)?;
///     Ok((image, Tensor::new(label, &Device::Cpu)?))
/// };
/// let samples = (0..6).map(sample).collect::<Result<Vec<_>, _>>()?;
/// for batch in Loader::builder(Items(samples), stack).batch(3).build()? {
///     let (images, labels) = &*batch?;
///     assert_eq!((images.dims(), labels.dims()), (&[3, 1, 28, 28][..], &[3][..]));
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// An [error of data](crate::Error::is_data) if there are no samples or they have different numbers of tensors, shapes or dtypes, with the place in the
/// batch. Those of candle if tensors are on different devices.
pub fn stack<S: Tensors>(samples: Vec<S>) -> Result<S, BoxedError> {
    let parts: Vec<_> = samples.iter().map(S::tensors).collect();
    let Some(first) = parts.first() else {
        return Err(refused("there are no samples to stack"));
    };
    for (place, sample) in parts.iter().enumerate() {
        let [found, expected] = [sample.len(), first.len()];
        if found != expected {
            return Err(refused(format!(
                "the sample at place {place} has {found} tensors, that at place 0 has {expected}"
            )));
        }
        for (number, (tensor, expected)) in sample.iter().zip(first).enumerate() {
            let at = || format!("tensor {number} of the sample at place {place}");
            let [found, there] = [tensor.dims(), expected.dims()];
            if found != there {
                return Err(refused(format!(
                    "{} has shape {found:?}, that at place 0 has {there:?}: crop, resize or pad them",
                    at()
                )));
            }
            let [found, there] = [tensor, expected].map(|tensor| tensor.dtype().as_str());
            if found != there {
                let problem = format!("{} has dtype {found}, that at place 0 has {there}", at());
                return Err(refused(problem));
            }
        }
    }
    let mut stacked = Vec::new();
    for number in 0..first.len() {
        let tensors: Vec<_> = parts
            .iter()
            .filter_map(|sample| sample.get(number))
            .collect();
        stacked.push(Tensor::stack(&tensors, 0)?);
    }
    let batch = samples.into_iter().next();
    let mut batch = batch.ok_or_else(|| refused("there are no samples to stack"))?;
    for (tensor, stacked) in batch.tensors_mut().into_iter().zip(stacked) {
        *tensor = stacked;
    }
    Ok(batch)
}

/// The error for samples that do not make a batch.
fn refused(problem: impl Display) -> BoxedError {
    invalid!(Data, "{problem}").into()
}
