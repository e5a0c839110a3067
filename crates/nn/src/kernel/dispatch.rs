use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use half::{bf16, f16};

use super::cuda::CudaKernel;
use super::storage::{mismatch, no_kernels, same_device, same_type};
use super::{Number, blocks, cuda, dense, rows_at_once, sum_type};

/// Whether there are kernels for a device. On others operations of this module are compositions of candle's.
pub fn runs_on(device: &Device) -> bool {
    match device {
        Device::Cpu => true,
        Device::Cuda(_) => cfg!(feature = "cuda"),
        Device::Metal(_) => false,
    }
}

/// Runs a kernel. Strided inputs are copied first. The outputs are not in the graph.
///
/// # Errors
/// If an input is on another device than the last or has another type, the type is not f64, f32, f16 or bf16, or there are no kernels
/// for the device.
pub fn run<K: Kernel<IN, OUT>, const IN: usize, const OUT: usize>(
    kernel: &K,
    inputs: [&Tensor; IN],
) -> Result<[Tensor; OUT]> {
    let name = K::NAME;
    let (dtype, device, dense) = checked(name, K::WIDE, &inputs)?;
    let plan = kernel.plan(inputs);
    let outputs = match (device, dtype) {
        (Device::Cpu, DType::F32) => blocks::run::<f32>(name, &plan, &dense, &work(kernel)),
        (Device::Cpu, DType::F64) => blocks::run::<f64>(name, &plan, &dense, &work(kernel)),
        (Device::Cpu, DType::F16) => blocks::run::<f16>(name, &plan, &dense, &work(kernel)),
        (Device::Cpu, _) => blocks::run::<bf16>(name, &plan, &dense, &work(kernel)),
        (Device::Cuda(device), _) => cuda::run(kernel, &device, &dense, &plan),
        (Device::Metal(_), _) => Err(no_kernels(name)),
    };
    outputs?.try_into().map_err(|_| mismatch(name))
}

/// A kernel as what its blocks have to do.
fn work<K: Kernel<IN, OUT>, S: Number, const IN: usize, const OUT: usize>(
    kernel: &K,
) -> impl Fn(usize, &[&[S]], Vec<&mut [S]>) -> Result<()> + Sync {
    move |first, inputs, outputs| match (inputs.try_into(), outputs.try_into()) {
        (Ok(inputs), Ok(outputs)) => {
            kernel.cpu(first, inputs, outputs);
            Ok(())
        }
        _ => Err(mismatch(K::NAME)),
    }
}

/// The type, the device, and the inputs, contiguous and outside the graph.
fn checked(
    name: &'static str,
    wide: usize,
    inputs: &[&Tensor],
) -> Result<(DType, Device, Vec<Tensor>)> {
    let last = inputs.last().ok_or_else(|| mismatch(name))?;
    let (dtype, device) = (last.dtype(), last.device());
    if !matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDTypeForOp(dtype, name).bt());
    }
    let mut dense = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        let expected = if index < wide { sum_type(dtype) } else { dtype };
        same_type(name, input.dtype(), expected)?;
        same_device(name, input.device(), device)?;
        dense.push(dense::dense(name, &input.detach())?);
    }
    Ok((dtype, device.clone(), dense))
}

/// How a kernel's work is cut into blocks of rows.
pub struct Plan {
    /// Number of rows. The last one may be shorter than the others.
    pub rows: usize,
    /// Number of rows of a block. It does not depend on the number of threads, so neither do sums.
    pub at_once: usize,
    pub inputs: Vec<Extent>,
    /// More elements than those of the shape are parts of sums: they are added up to one tensor, part by part.
    pub outputs: Vec<(Shape, Extent)>,
    /// Whether the outputs are of the type of sums. Otherwise they are of the type of the last input.
    pub is_wide: bool,
}

/// What a block has of a tensor.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// This many elements for each row.
    Row(usize),
    /// This many elements for each block, of an output.
    Block(usize),
    /// The whole tensor, of an input.
    All,
}

impl Plan {
    /// An output of the shape of `xs`, computed by rows of `width` elements.
    pub fn of_rows(xs: &Tensor, width: usize, inputs: impl Into<Vec<Extent>>) -> Self {
        Self {
            rows: xs.elem_count().div_ceil(width.max(1)),
            at_once: rows_at_once(width),
            inputs: inputs.into(),
            outputs: vec![(xs.shape().clone(), Extent::Row(width))],
            is_wide: false,
        }
    }

    pub fn blocks(&self) -> usize {
        self.rows.div_ceil(self.at_once.max(1))
    }
}

/// A fused computation: it reads tensors of one floating-point type, and some of the type of sums, and makes new ones.
///
/// Everything is computed in f64 for f64 and in f32 for all others.
pub trait Kernel<const IN: usize, const OUT: usize>: CudaKernel<IN, OUT> + Sync {
    /// Also the name of the CUDA kernel, without the type.
    const NAME: &'static str;

    /// Number of inputs, the first ones, of the type of sums.
    const WIDE: usize = 0;

    /// How the work is cut on the CPU, and the shapes of the outputs. The inputs have been checked by the caller.
    fn plan(&self, inputs: [&Tensor; IN]) -> Plan;

    /// Writes the outputs of a block of rows, which are zeros. `first` is the number of its first row.
    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; IN], outputs: [&mut [S]; OUT]);
}
