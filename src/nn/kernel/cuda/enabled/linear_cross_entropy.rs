use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{CudaStorage, DType, Error, Layout, Result, Tensor, WithDType};

use super::{CudaElement, Module, each_element, each_row, function, module, view};
use crate::nn::kernel::{Element, mismatch};
use crate::nn::loss::linear_cross_entropy::Arguments;

const MODULE: Module = module!("linear_cross_entropy");
const NAME: &str = "linear_cross_entropy";

/// The losses of rows of logits, which become gradients if those are asked for.
pub fn losses_of_rows(
    arguments: &Arguments,
    logits: &mut CudaStorage,
    layout: &Layout,
) -> Result<CudaStorage> {
    match logits.dtype() {
        DType::F32 => losses::<f32>(arguments, logits, layout),
        DType::F64 => losses::<f64>(arguments, logits, layout),
        dtype => Err(Error::UnsupportedDTypeForOp(dtype, NAME).bt()),
    }
}

fn losses<T: Element + CudaElement + WithDType>(
    arguments: &Arguments,
    logits: &mut CudaStorage,
    layout: &Layout,
) -> Result<CudaStorage> {
    let device = logits.device.clone();
    let function = function::<T>(&device, MODULE, NAME)?;
    let (rows, width) = layout.shape().dims2()?;
    let (start, end) = layout.contiguous_offsets().ok_or_else(|| mismatch(NAME))?;
    let logits = T::as_cuda_slice_mut(logits)?.try_slice_mut(start..end);
    let mut logits = logits.ok_or_else(|| mismatch(NAME))?;
    let (storage, of_targets) = arguments.targets.storage_and_layout();
    let targets = view::<i64>(&storage, of_targets, NAME)?;
    // SAFETY: the kernel writes all of it before anything reads it, on the same stream.
    let mut losses = unsafe { device.alloc::<T>(rows.max(1))? };
    let weights = arguments.weights.map(Tensor::storage_and_layout);
    let weights = weights.as_ref();
    let weights = weights.map(|(storage, layout)| view::<T>(storage, layout, NAME));
    let weights = weights.transpose()?;
    let bias = arguments.bias.map(Tensor::storage_and_layout);
    let bias = bias.as_ref();
    let bias = bias.map(|(storage, layout)| view::<T>(storage, layout, NAME));
    let bias = bias.transpose()?;
    let fits = targets.len() == rows
        && weights.as_ref().is_none_or(|weights| weights.len() == rows)
        && bias.as_ref().is_none_or(|bias| bias.len() == width);
    if !fits {
        return Err(mismatch(NAME));
    }
    let rule = arguments.rule;
    let rule = [rule.smoothing, rule.z_loss, rule.softcap.unwrap_or(0.)];
    let [smoothing, z_loss, softcap] = rule.map(T::from_f64);
    let differentiates = u32::from(arguments.differentiates);
    let mut launch = function.builder();
    launch.arg(&width).arg(&arguments.none);
    launch.arg(&smoothing).arg(&z_loss).arg(&softcap);
    launch.arg(&differentiates).arg(&targets);
    for optional in [&weights, &bias] {
        match optional {
            Some(values) => launch.arg(values),
            None => launch.arg(&NONE),
        };
    }
    launch.arg(&mut logits).arg(&mut losses);
    // SAFETY: the arguments are those of the kernel in kernels/linear_cross_entropy.cu; the logits have `rows` rows of `width`
    // elements, targets, weights and losses have `rows` elements, and the bias has `width`. Of the optional ones the kernel reads
    // no null pointer.
    unsafe { launch.launch(each_row(rows, width)?) }.w()?;
    Ok(T::wrap_cuda_slice(losses, device))
}

/// The address of an optional tensor that there is not.
const NONE: u64 = 0;

/// Multiplies contiguous values by the one element of another tensor.
pub fn scale(
    (values, of_values): (&mut CudaStorage, &Layout),
    (factor, of_factor): (&CudaStorage, &Layout),
) -> Result<()> {
    match values.dtype() {
        DType::F32 => scaled::<f32>((values, of_values), (factor, of_factor)),
        DType::F64 => scaled::<f64>((values, of_values), (factor, of_factor)),
        dtype => Err(Error::UnsupportedDTypeForOp(dtype, "scale").bt()),
    }
}

fn scaled<T: Element + CudaElement>(
    (values, of_values): (&mut CudaStorage, &Layout),
    (factor, of_factor): (&CudaStorage, &Layout),
) -> Result<()> {
    let function = function::<T>(&values.device, MODULE, "scale")?;
    let (start, end) = of_values
        .contiguous_offsets()
        .ok_or_else(|| mismatch(NAME))?;
    let at = of_factor.start_offset();
    let factor = T::as_cuda_slice(factor)?.try_slice(at..at + 1);
    let values = T::as_cuda_slice_mut(values)?.try_slice_mut(start..end);
    let (Some(factor), Some(mut values)) = (factor, values) else {
        return Err(mismatch(NAME));
    };
    let len = values.len();
    let mut launch = function.builder();
    launch.arg(&len).arg(&factor).arg(&mut values);
    // SAFETY: the arguments are those of the kernel in kernels/linear_cross_entropy.cu; there are `len` values and one factor.
    unsafe { launch.launch(each_element(len)) }.w()?;
    Ok(())
}
