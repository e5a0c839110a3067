use std::ops::Range;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{
    CudaView, CudaViewMut, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::{CudaStorage, DType, Error, Layout, Result, Tensor};
use half::{bf16, f16};

use crate::nn::attention::chunks::chunk::Chunk;
use crate::nn::attention::rule::{NAME, Rule};
use crate::nn::kernel::Element;
use crate::nn::kernel::cuda::{Function, Module, each_row, function, module, view};

const MODULE: Module = module!("attention");

/// What all kernels are told. `Chunk` in kernels/attention.cu has the same fields.
#[repr(C)]
#[derive(Clone, Copy)]
struct Geometry {
    heads: u64,
    queries: u64,
    keys: u64,
    first: u64,
    all_queries: u64,
    all_keys: u64,
    last_seen: i64,
    mask_strides: [u64; 4],
    softcap: f64,
    factor: f64,
    seed: u64,
    threshold: u64,
}

// SAFETY: plain numbers of 8 bytes, laid out as `Chunk` in kernels/attention.cu.
unsafe impl DeviceRepr for Geometry {}

pub struct Arguments<'a> {
    geometry: Geometry,
    mask: Option<&'a Tensor>,
    rows: usize,
    scores: usize,
}

impl<'a> Arguments<'a> {
    pub fn new(rule: &'a Rule, chunk: &Chunk) -> Self {
        let sizes = rule.sizes;
        let mut mask_strides = [0; 4];
        if let Some(mask) = &rule.mask {
            let of_dims = mask.dims().iter().zip(mask.stride());
            for (stride, (dim, of_dim)) in mask_strides.iter_mut().zip(of_dims) {
                *stride = if *dim == 1 { 0 } else { *of_dim as u64 };
            }
        }
        let dropout = rule.dropout.as_ref();
        let rows = sizes.batch * sizes.heads * chunk.queries;
        Self {
            geometry: Geometry {
                heads: sizes.heads as u64,
                queries: chunk.queries as u64,
                keys: chunk.keys as u64,
                first: chunk.first as u64,
                all_queries: sizes.queries as u64,
                all_keys: sizes.keys as u64,
                last_seen: rule.last_seen(),
                mask_strides,
                softcap: rule.softcap.unwrap_or(0.),
                factor: dropout.map_or(0., |dropout| dropout.factor),
                seed: dropout.map_or(0, |dropout| dropout.seed),
                threshold: dropout.map_or(0, |dropout| dropout.threshold.into()),
            },
            mask: rule.mask.as_ref(),
            rows,
            scores: rows * chunk.keys,
        }
    }

    /// Calls `launch` with the elements of the mask.
    fn with_mask<T: Element>(
        &self,
        launch: impl FnOnce(Option<&CudaView<'_, T>>) -> Result<()>,
    ) -> Result<()> {
        match self.mask {
            None => launch(None),
            Some(mask) => {
                let (storage, layout) = mask.storage_and_layout();
                launch(Some(&view(&storage, layout, NAME)?))
            }
        }
    }

    fn function<T: Element>(&self, storage: &CudaStorage, name: &str) -> Result<Function> {
        function::<T>(&storage.device, MODULE, name)
    }
}

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

/// Writes the logarithms of sums of exponentials of scores.
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
    let function = arguments.function::<T>(scores.0, "attention_sums")?;
    let mut statistics = target::<T::Sum>(statistics, arguments.rows)?;
    let scores = source::<T>(scores, arguments.scores)?;
    arguments.with_mask::<T>(|mask| {
        let mut launch = function.builder();
        launch.arg(&arguments.geometry);
        match mask {
            Some(mask) => launch.arg(mask),
            None => launch.arg(&NONE),
        };
        launch.arg(&scores).arg(&mut statistics);
        // SAFETY: the arguments are those of the kernel in kernels/attention.cu, of the sizes that were checked. The strides of a rule's
        // mask stay within it.
        unsafe { launch.launch(arguments.grid()?) }.w()?;
        Ok(())
    })
}

fn weights_of<T: Element>(arguments: &Arguments, scores: Target, statistics: Source) -> Result<()> {
    let function = arguments.function::<T>(scores.0, "attention_weights")?;
    let statistics = source::<T::Sum>(statistics, arguments.rows)?;
    let mut scores = target::<T>(scores, arguments.scores)?;
    arguments.with_mask::<T>(|mask| {
        let mut launch = function.builder();
        launch.arg(&arguments.geometry);
        match mask {
            Some(mask) => launch.arg(mask),
            None => launch.arg(&NONE),
        };
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
    let function = arguments.function::<T>(scores.0, "attention_gradients")?;
    let sums = source::<T::Sum>(sums, arguments.rows)?;
    let statistics = source::<T::Sum>(statistics, arguments.rows)?;
    let scores = source::<T>(scores, arguments.scores)?;
    let mut gradients = target::<T>(gradients, arguments.scores)?;
    arguments.with_mask::<T>(|mask| {
        let mut launch = function.builder();
        launch.arg(&arguments.geometry);
        match mask {
            Some(mask) => launch.arg(mask),
            None => launch.arg(&NONE),
        };
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

/// The address of no mask.
const NONE: u64 = 0;

impl Arguments<'_> {
    fn grid(&self) -> Result<LaunchConfig> {
        each_row(self.rows, self.geometry.keys as usize)
    }
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
