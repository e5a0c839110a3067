use std::ops::Range;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::{CudaView, CudaViewMut, LaunchArgs, PushKernelArg};
use candle_core::{CudaStorage, DType, Error, Layout, Result};
use half::{bf16, f16};

use super::arguments::Arguments;
use crate::attention::rule::NAME;
use crate::kernel::Element;
use crate::kernel::cuda::{Function, Module, function, module};

const MODULE: Module = module!("attention");

/// Chooses the implementation for a type.
macro_rules! of_type {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F32 => $function::<f32>($($argument),*),
            DType::F64 => $function::<f64>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            other => Err(Error::UnsupportedDTypeForOp(other, NAME).bt()),
        }
    };
}

/// A contiguous tensor in place.
pub type Target<'a> = (&'a mut CudaStorage, &'a Layout);
/// A contiguous tensor.
pub type Source<'a> = (&'a CudaStorage, &'a Layout);

/// Writes the statistics of scores.
pub fn sums(arguments: &Arguments, statistics: Target, scores: Source) -> Result<()> {
    of_type!(scores.0.dtype(), sums_of(arguments, statistics, scores))
}

/// Turns scores into weights.
pub fn weights(arguments: &Arguments, scores: Target, statistics: Source) -> Result<()> {
    of_type!(scores.0.dtype(), weights_of(arguments, scores, statistics))
}

/// Turns gradients of weights into gradients of scores, given scores, statistics and the sums of weights · gradients.
pub fn gradients(
    arguments: &Arguments,
    gradients: Target,
    sources: [Source; 2],
    sums: Source,
) -> Result<()> {
    of_type!(
        gradients.0.dtype(),
        gradients_of(arguments, gradients, sources, sums)
    )
}

fn sums_of<T: Element>(arguments: &Arguments, statistics: Target, scores: Source) -> Result<()> {
    let function = load::<T>(scores.0, "attention_sums")?;
    let mut statistics = target::<T::Sum>(statistics, 2 * arguments.rows)?;
    let scores = source::<T>(scores, arguments.scores)?;
    arguments.with_bias::<T>(|mask, slopes| {
        let mut launch = function.builder();
        launch.arg(&arguments.geometry);
        push(&mut launch, mask);
        push(&mut launch, slopes);
        launch.arg(&scores).arg(&mut statistics);
        // SAFETY: the arguments are those of the kernel in kernels/attention.cu, of the sizes that were checked. The strides of a rule's
        // mask stay within it, and there is a slope for each head.
        unsafe { launch.launch(arguments.grid()?) }.w()?;
        Ok(())
    })
}

fn weights_of<T: Element>(arguments: &Arguments, scores: Target, statistics: Source) -> Result<()> {
    let function = load::<T>(scores.0, "attention_weights")?;
    let statistics = source::<T::Sum>(statistics, 2 * arguments.rows)?;
    let mut scores = target::<T>(scores, arguments.scores)?;
    arguments.with_bias::<T>(|mask, slopes| {
        let mut launch = function.builder();
        launch.arg(&arguments.geometry);
        push(&mut launch, mask);
        push(&mut launch, slopes);
        launch.arg(&statistics).arg(&mut scores);
        // SAFETY: as in `sums_of`.
        unsafe { launch.launch(arguments.grid()?) }.w()?;
        Ok(())
    })
}

fn gradients_of<T: Element>(
    arguments: &Arguments,
    gradients: Target,
    [scores, statistics]: [Source; 2],
    sums: Source,
) -> Result<()> {
    let function = load::<T>(scores.0, "attention_gradients")?;
    let sums = source::<T::Sum>(sums, arguments.rows)?;
    let statistics = source::<T::Sum>(statistics, 2 * arguments.rows)?;
    let scores = source::<T>(scores, arguments.scores)?;
    let mut gradients = target::<T>(gradients, arguments.scores)?;
    arguments.with_bias::<T>(|mask, slopes| {
        let mut launch = function.builder();
        launch.arg(&arguments.geometry);
        push(&mut launch, mask);
        push(&mut launch, slopes);
        launch
            .arg(&statistics)
            .arg(&sums)
            .arg(&scores)
            .arg(&mut gradients);
        // SAFETY: as in `sums_of`.
        unsafe { launch.launch(arguments.grid()?) }.w()?;
        Ok(())
    })
}

fn load<T: Element>(storage: &CudaStorage, name: &str) -> Result<Function> {
    function::<T>(&storage.device, MODULE, name)
}

/// Adds an address to the arguments, or 0.
fn push<'a, T>(launch: &mut LaunchArgs<'a>, view: Option<&'a CudaView<'_, T>>) {
    const NONE: u64 = 0;
    match view {
        Some(view) => launch.arg(view),
        None => launch.arg(&NONE),
    };
}

/// The `expected` elements of a contiguous tensor.
fn source<T: Element>((storage, layout): Source<'_>, expected: usize) -> Result<CudaView<'_, T>> {
    let range = range(layout, expected)?;
    T::as_cuda_slice(storage)?
        .try_slice(range)
        .ok_or_else(|| misfit(layout))
}

fn target<T: Element>(
    (storage, layout): Target<'_>,
    expected: usize,
) -> Result<CudaViewMut<'_, T>> {
    let range = range(layout, expected)?;
    T::as_cuda_slice_mut(storage)?
        .try_slice_mut(range)
        .ok_or_else(|| misfit(layout))
}

fn range(layout: &Layout, expected: usize) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) if end - start == expected => Ok(start..end),
        _ => Err(misfit(layout)),
    }
}

fn misfit(layout: &Layout) -> Error {
    Error::Msg(format!(
        "{NAME}: a tensor of shape {:?} does not fit",
        layout.shape()
    ))
    .bt()
}
