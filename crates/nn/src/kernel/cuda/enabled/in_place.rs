//! How each kernel that changes a tensor in place is launched.

use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Error, Layout, Result, Tensor};

use super::launch::{Launch, Module, each_element, each_row, module};
use super::unwritten;
use crate::kernel::mismatch;
use crate::loss::linear_cross_entropy::Arguments;

const BIAS: Module = module!("bias");
const LINEAR_CROSS_ENTROPY: Module = module!("linear_cross_entropy");

/// Adds a vector, of at least one element, to each row in place. Both are contiguous and of the same type.
pub fn add_to_rows((rows, layout): (&mut CudaStorage, &Layout), bias: &Tensor) -> Result<()> {
    const NAME: &str = "add_to_rows";
    let (device, dtype) = (rows.device.clone(), rows.dtype());
    let (len, width) = (layout.shape().elem_count(), bias.elem_count());
    if bias.dtype() != dtype || width == 0 {
        return Err(mismatch(NAME));
    }
    // (len, width, bias, rows), where the rows have `len` elements and the bias has `width`, more than 0, of the same type.
    let numbers = [len as u64, width as u64];
    let launch = Launch::new(BIAS, each_element(len), numbers, [width, len]);
    let targets = [(rows, Some(layout))];
    launch.run(NAME, &device, dtype, &[Some(bias)], targets)
}

/// The losses of rows of logits, which become gradients if those are asked for.
pub fn losses_of_rows(
    given: &Arguments,
    logits: &mut CudaStorage,
    layout: &Layout,
) -> Result<CudaStorage> {
    const NAME: &str = "linear_cross_entropy";
    let (device, dtype) = (logits.device.clone(), logits.dtype());
    let (rows, width) = layout.shape().dims2()?;
    let of_type = |tensor: Option<&Tensor>, len| {
        tensor.is_none_or(|tensor| tensor.dtype() == dtype && tensor.elem_count() == len)
    };
    let fits = given.targets.dtype() == DType::I64
        && given.targets.elem_count() == rows
        && of_type(given.weights, rows)
        && of_type(given.bias, width);
    if !fits {
        return Err(mismatch(NAME));
    }
    let bits: fn(f64) -> u64 = match dtype {
        DType::F32 => |number: f64| u64::from((number as f32).to_bits()),
        DType::F64 => f64::to_bits,
        dtype => return Err(Error::UnsupportedDTypeForOp(dtype, NAME).bt()),
    };
    let rule = given.rule;
    let numbers = [
        width as u64,
        given.none as u64,
        bits(rule.smoothing),
        bits(rule.z_loss),
        bits(rule.softcap.unwrap_or(0.)),
        u64::from(given.differentiates),
    ];
    let mut losses = unwritten(&device, rows, dtype)?;
    // (width, none, smoothing, z loss, cap, differentiates, targets, weights, bias, logits, losses): the logits have a row of `width` elements
    // for each block, targets, weights and losses have one element, and the bias has `width`. Weights and bias may be null, which the kernel
    // does not read. The rule's numbers are of the type of the logits, and so are all but the targets.
    let counts = [
        rows,
        given.weights.map_or(0, |_| rows),
        given.bias.map_or(0, |_| width),
        rows * width,
        rows,
    ];
    let grid = each_row(rows, width)?;
    let launch = Launch::new(LINEAR_CROSS_ENTROPY, grid, numbers, counts);
    let sources = [Some(given.targets), given.weights, given.bias];
    let targets = [(logits, Some(layout)), (&mut losses, None)];
    launch.run(NAME, &device, dtype, &sources, targets)?;
    Ok(losses)
}

/// Multiplies contiguous values by the one element of another tensor.
pub fn scale((values, layout): (&mut CudaStorage, &Layout), factor: &Tensor) -> Result<()> {
    const NAME: &str = "scale";
    let (device, dtype) = (values.device.clone(), values.dtype());
    if !matches!(dtype, DType::F32 | DType::F64) || factor.dtype() != dtype {
        return Err(Error::UnsupportedDTypeForOp(dtype, NAME).bt());
    }
    if factor.elem_count() != 1 {
        return Err(mismatch(NAME));
    }
    // (len, factor, values): there are `len` values and one factor, of the same type.
    let (len, targets) = (layout.shape().elem_count(), [(values, Some(layout))]);
    let grid = each_element(len);
    let launch = Launch::new(LINEAR_CROSS_ENTROPY, grid, [len as u64], [1, len]);
    launch.run(NAME, &device, dtype, &[Some(factor)], targets)
}
