//! Contiguous copies of tensors at any strides.
//!
//! candle's own copy has dimensions and strides in memory of the device, for which it allocates, copies from memory of the host that is not
//! page-locked, and frees. It counts elements in 32 bits.

use candle_core::{DType, Result, Tensor};

use super::launch::{Launch, Module, each_element, module};

const STRIDED: Module = module!("strided");

/// The most dimensions that the kernel takes.
const MOST: usize = 4;

/// A contiguous copy outside the graph; `None` for more than four dimensions, for types without arithmetic, and of nothing.
pub fn copied(tensor: &Tensor) -> Result<Option<Tensor>> {
    let (dims, strides, dtype) = (tensor.dims(), tensor.stride(), tensor.dtype());
    let is_number = matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16);
    if !is_number || dims.len() > MOST || tensor.elem_count() == 0 {
        return Ok(None);
    }
    // (len, the last three dimensions, four strides, xs, ys). Dimensions of 1 come first. `xs` has the elements up to the last one.
    let (mut sizes, mut steps) = ([1; MOST], [0; MOST]);
    let first = MOST - dims.len();
    sizes[first..].copy_from_slice(dims);
    steps[first..].copy_from_slice(strides);
    let (len, device) = (tensor.elem_count(), tensor.device().as_cuda_device()?);
    let numbers = [&[len][..], &sizes[1..], &steps].concat();
    let numbers = numbers.into_iter().map(|number| number as u64);
    let last = |(size, step): (usize, usize)| (size - 1) * step;
    let read = 1 + sizes.into_iter().zip(steps).map(last).sum::<usize>();
    let launch = Launch::new(STRIDED, each_element(len), numbers, [read, len]);
    let target = (tensor.shape().clone(), dtype);
    let [copy] = launch.at_strides().make(
        "copy_strided",
        device,
        dtype,
        &[Some(tensor)],
        None,
        [target],
    )?;
    Ok(Some(copy))
}
