use std::ffi::c_void;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::cuda_backend::{CudaDType, WrapErr, gemm_reduced_precision_f32};
use candle_core::{CudaStorage, DType, Error, Layout, Result, Storage, WithDType};
use half::{bf16, f16};

use crate::kernel::{Element, mismatch};

const NAME: &str = "product";

type Source<'a> = (&'a Storage, &'a Layout);
type Target<'a> = (&'a mut CudaStorage, &'a Layout);

/// Writes a · b into a matrix with contiguous rows, or adds it to what is there. `a` and `b` have the same type, that of `into`
/// or f16 or bf16 where `into` is f32; their rows or columns are contiguous.
pub fn multiply(adds: bool, into: Target, a: Source, b: Source) -> Result<()> {
    match (a.0.dtype(), b.0.dtype(), into.0.dtype()) {
        (DType::F32, DType::F32, DType::F32) => product::<f32>(adds, into, a, b),
        (DType::F64, DType::F64, DType::F64) => product::<f64>(adds, into, a, b),
        (DType::F16, DType::F16, DType::F32) => product::<f16>(adds, into, a, b),
        (DType::BF16, DType::BF16, DType::F32) => product::<bf16>(adds, into, a, b),
        (dtype, ..) => Err(Error::UnsupportedDTypeForOp(dtype, NAME).bt()),
    }
}

/// How cuBLAS reads a matrix, of which it takes the transpose, because its matrices are column-major.
struct Stored {
    operation: sys::cublasOperation_t,
    leading: i32,
    rows: usize,
    columns: usize,
}

impl Stored {
    fn new(layout: &Layout) -> Result<Self> {
        let (rows, columns) = layout.shape().dims2()?;
        let (operation, leading) = match *layout.stride() {
            [row, 1] if row >= columns => (sys::cublasOperation_t::CUBLAS_OP_N, row),
            [1, column] if column >= rows => (sys::cublasOperation_t::CUBLAS_OP_T, column),
            _ => return Err(Error::RequiresContiguous { op: NAME }.bt()),
        };
        Ok(Self {
            operation,
            leading: int(leading.max(1))?,
            rows,
            columns,
        })
    }

    /// Elements from the first to the last one.
    fn len(&self) -> usize {
        let (lines, of_line) = match self.operation {
            sys::cublasOperation_t::CUBLAS_OP_N => (self.rows, self.columns),
            _ => (self.columns, self.rows),
        };
        lines.saturating_sub(1) * self.leading as usize + of_line
    }
}

fn int(size: usize) -> Result<i32> {
    i32::try_from(size).map_err(|_| {
        let text = format!("{NAME}: {size} is more than cuBLAS takes, 2147483647");
        Error::Msg(text).bt()
    })
}

fn product<T: Element<Sum: CudaDType> + CudaDType>(
    adds: bool,
    (into, of_into): Target,
    (a, of_a): Source,
    (b, of_b): Source,
) -> Result<()> {
    let (left, right, output) = (
        Stored::new(of_a)?,
        Stored::new(of_b)?,
        Stored::new(of_into)?,
    );
    let fits =
        (left.rows, left.columns, right.columns) == (output.rows, right.rows, output.columns);
    if !fits || output.operation != sys::cublasOperation_t::CUBLAS_OP_N {
        return Err(mismatch(NAME));
    }
    let device = into.device.clone();
    let part = |layout: &Layout, stored: &Stored| {
        let start = layout.start_offset();
        start..start + stored.len()
    };
    let (Storage::Cuda(a), Storage::Cuda(b)) = (a, b) else {
        return Err(mismatch(NAME));
    };
    let a = T::as_cuda_slice(a)?.try_slice(part(of_a, &left));
    let b = T::as_cuda_slice(b)?.try_slice(part(of_b, &right));
    let into =
        <T::Sum as CudaDType>::as_cuda_slice_mut(into)?.try_slice_mut(part(of_into, &output));
    let (Some(a), Some(b), Some(mut into)) = (a, b, into) else {
        return Err(mismatch(NAME));
    };
    let one = T::Sum::from_f64(1.);
    let beta = T::Sum::from_f64(if adds { 1. } else { 0. });
    let (columns, rows, depth) = (int(right.columns)?, int(left.rows)?, int(left.columns)?);
    let (blas, stream) = (device.cublas_handle(), device.cuda_stream());
    let (a, _reads_a) = a.device_ptr(&stream);
    let (b, _reads_b) = b.device_ptr(&stream);
    let (into, _writes) = into.device_ptr_mut(&stream);
    // SAFETY: each address is that of a matrix of these sizes and strides, `Stored::len` elements that were checked to lie within
    // their slice. The slices live until the guards are dropped, after the call, on the stream of the handle. `into` is borrowed mutably,
    // so it overlaps neither `a` nor `b`. The scalars are of the type that goes with the type of sums.
    unsafe {
        result::gemm_ex(
            *blas.handle(),
            right.operation,
            left.operation,
            columns,
            rows,
            depth,
            address(&one),
            b as *const c_void,
            data_type(T::DTYPE)?,
            right.leading,
            a as *const c_void,
            data_type(T::DTYPE)?,
            left.leading,
            address(&beta),
            into as *mut c_void,
            data_type(T::Sum::DTYPE)?,
            output.leading,
            compute_type(T::DTYPE),
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT_TENSOR_OP,
        )
    }
    .w()
}

fn address<T>(number: &T) -> *const c_void {
    std::ptr::from_ref(number).cast()
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType> {
    match dtype {
        DType::F32 => Ok(sys::cudaDataType_t::CUDA_R_32F),
        DType::F64 => Ok(sys::cudaDataType_t::CUDA_R_64F),
        DType::F16 => Ok(sys::cudaDataType_t::CUDA_R_16F),
        DType::BF16 => Ok(sys::cudaDataType_t::CUDA_R_16BF),
        other => Err(Error::UnsupportedDTypeForOp(other, NAME).bt()),
    }
}

/// Sums are f32 for f16 and bf16. Products of f32 have the precision that candle is set to. For f16 and bf16 there are
/// none: cuBLAS takes its fast types for f32 operands only, and could not write f16 sums as f32.
fn compute_type(dtype: DType) -> sys::cublasComputeType_t {
    match dtype {
        DType::F64 => sys::cublasComputeType_t::CUBLAS_COMPUTE_64F,
        DType::F32 if gemm_reduced_precision_f32() => {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        }
        _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    }
}
