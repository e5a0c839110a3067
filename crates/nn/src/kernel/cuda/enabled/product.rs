use std::ffi::c_void;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::cublas::{result, sys};
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle_core::cuda_backend::{CudaDType, WrapErr, gemm_reduced_precision_f32};
use candle_core::{CudaStorage, DType, Error, Layout, Result, Shape, Storage, Tensor, WithDType};
use half::{bf16, f16};

use super::unwritten;
use crate::kernel::{Element, InPlace, dense, in_place, mismatch, tensor};

const NAME: &str = "product";

type Source<'a> = (&'a Storage, &'a Layout);
type Target<'a> = (&'a mut CudaStorage, &'a Layout);

/// Writes `factor` · a · b into a matrix with contiguous rows, or adds it to what is there. `a` and `b` have the same type, that of `into`
/// or f16 or bf16 where `into` is f32; their rows or columns are contiguous. Before rows and columns all have the same dimensions, each a
/// product of its own, at one distance from each other: [`regular`] makes an operand so. Sums are f32 for f16 and bf16 whatever the type of
/// `into`.
pub fn multiply(factor: f64, adds: bool, into: Target, a: Source, b: Source) -> Result<()> {
    match (a.0.dtype(), b.0.dtype(), into.0.dtype()) {
        (DType::F32, DType::F32, DType::F32) => product::<f32, f32>(factor, adds, into, a, b),
        (DType::F64, DType::F64, DType::F64) => product::<f64, f64>(factor, adds, into, a, b),
        (DType::F16, DType::F16, DType::F32) => product::<f16, f32>(factor, adds, into, a, b),
        (DType::F16, DType::F16, DType::F16) => product::<f16, f16>(factor, adds, into, a, b),
        (DType::BF16, DType::BF16, DType::F32) => product::<bf16, f32>(factor, adds, into, a, b),
        (DType::BF16, DType::BF16, DType::BF16) => product::<bf16, bf16>(factor, adds, into, a, b),
        (dtype, ..) => Err(Error::UnsupportedDTypeForOp(dtype, NAME).bt()),
    }
}

/// The tensor itself where [`multiply`] can read it, else a contiguous copy.
pub fn regular(tensor: &Tensor) -> Result<Tensor> {
    match Stored::new(tensor.layout()) {
        Ok(_) => Ok(tensor.clone()),
        Err(_) => dense(NAME, tensor),
    }
}

/// `factor` · a · b as a new tensor of a type.
pub fn product_of(factor: f64, a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    let mut dims = a.dims().to_vec();
    if let (Some(columns), Some(of_b)) = (dims.last_mut(), b.dims().last()) {
        *columns = *of_b;
    }
    let shape = Shape::from(dims);
    let mut into = unwritten(a.device().as_cuda_device()?, shape.elem_count(), dtype)?;
    let ((a, of_a), (b, of_b)) = (a.storage_and_layout(), b.storage_and_layout());
    let layout = Layout::contiguous(shape.clone());
    multiply(factor, false, (&mut into, &layout), (&a, of_a), (&b, of_b))?;
    Ok(tensor(Storage::Cuda(into), shape))
}

/// Writes `factor` · a · b into a tensor, or adds it to what is there.
pub fn put_product(factor: f64, adds: bool, into: &Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    let ((a, of_a), (b, of_b)) = (a.storage_and_layout(), b.storage_and_layout());
    in_place(NAME, into, |into, layout| match into {
        InPlace::Cuda(into) => multiply(factor, adds, (into, layout), (&a, of_a), (&b, of_b)),
        _ => Err(mismatch(NAME)),
    })
}

/// How cuBLAS reads matrices, of which it takes the transposes, because its matrices are column-major.
struct Stored {
    operation: sys::cublasOperation_t,
    leading: i32,
    rows: usize,
    columns: usize,
    /// How many there are, and the distance from one to the next: 0 where all are the same one.
    count: usize,
    stride: usize,
}

impl Stored {
    fn new(layout: &Layout) -> Result<Self> {
        let irregular = || Error::RequiresContiguous { op: NAME }.bt();
        let (dims, strides) = (layout.dims(), layout.stride());
        let [outer @ .., rows, columns] = dims else {
            return Err(irregular());
        };
        let [outer_strides @ .., row, column] = strides else {
            return Err(irregular());
        };
        let (rows, columns) = (*rows, *columns);
        let (operation, leading) = match (*row, *column) {
            (row, 1) if row >= columns => (sys::cublasOperation_t::CUBLAS_OP_N, row),
            (1, column) if column >= rows => (sys::cublasOperation_t::CUBLAS_OP_T, column),
            _ => return Err(irregular()),
        };
        // One stride for all, or cuBLAS would have to be given a list of addresses.
        let (mut count, mut stride) = (1, 0);
        for (&dim, &of_dim) in outer.iter().zip(outer_strides).rev() {
            match count {
                _ if dim == 1 => {}
                1 => (count, stride) = (dim, of_dim),
                _ if of_dim == count * stride => count *= dim,
                _ => return Err(irregular()),
            }
        }
        Ok(Self {
            operation,
            leading: int(leading.max(1))?,
            rows,
            columns,
            count,
            stride,
        })
    }

    /// Elements from the first to the last one.
    fn len(&self) -> usize {
        self.count.saturating_sub(1) * self.stride + self.of_one()
    }

    /// The same of one matrix.
    fn of_one(&self) -> usize {
        let (lines, of_line) = match self.operation {
            sys::cublasOperation_t::CUBLAS_OP_N => (self.rows, self.columns),
            _ => (self.columns, self.rows),
        };
        lines.saturating_sub(1) * self.leading as usize + of_line
    }

    /// Whether no two of the matrices share an element: each follows the one before it, or its rows lie between rows of the others.
    fn is_apart(&self) -> bool {
        let last = self.count.saturating_sub(1).saturating_mul(self.stride);
        let is_between = last.saturating_add(self.columns) <= self.leading as usize;
        let is_between = is_between && self.stride >= self.columns;
        self.count == 1 || self.stride >= self.of_one() || is_between
    }

    fn step(&self) -> Result<i64> {
        i64::try_from(self.stride).map_err(|_| mismatch(NAME))
    }
}

fn int(size: usize) -> Result<i32> {
    i32::try_from(size).map_err(|_| {
        let text = format!("{NAME}: {size} is more than cuBLAS takes, 2147483647");
        Error::Msg(text).bt()
    })
}

fn product<T: Element<Sum: CudaDType> + CudaDType, C: CudaDType + WithDType>(
    factor: f64,
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
    let fits = (left.rows, left.columns, right.columns)
        == (output.rows, right.rows, output.columns)
        && (left.count, right.count) == (output.count, output.count);
    if of_into.shape().elem_count() == 0 {
        return Ok(());
    }
    if !fits || !output.is_apart() || output.operation != sys::cublasOperation_t::CUBLAS_OP_N {
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
    let into = C::as_cuda_slice_mut(into)?.try_slice_mut(part(of_into, &output));
    let (Some(a), Some(b), Some(mut into)) = (a, b, into) else {
        return Err(mismatch(NAME));
    };
    let factor = T::Sum::from_f64(factor);
    let beta = T::Sum::from_f64(if adds { 1. } else { 0. });
    let (columns, rows, depth) = (int(right.columns)?, int(left.rows)?, int(left.columns)?);
    let (blas, stream) = (device.cublas_handle(), device.cuda_stream());
    let (a, _reads_a) = a.device_ptr(&stream);
    let (b, _reads_b) = b.device_ptr(&stream);
    let (into, _writes) = into.device_ptr_mut(&stream);
    // SAFETY: each address is that of matrices of these sizes and strides, `Stored::len` elements that were checked to lie within
    // their slice. The slices live until the guards are dropped, after the call, on the stream of the handle. `into` is borrowed mutably,
    // so it overlaps neither `a` nor `b`, and no two of its matrices share an element (`Stored::is_apart`). The types of operands and result are
    // those of their slices, and the scalars are of the type that goes with the type of sums.
    unsafe {
        result::gemm_strided_batched_ex(
            *blas.handle(),
            right.operation,
            left.operation,
            columns,
            rows,
            depth,
            address(&factor),
            b as *const c_void,
            data_type(T::DTYPE)?,
            right.leading,
            right.step()?,
            a as *const c_void,
            data_type(T::DTYPE)?,
            left.leading,
            left.step()?,
            address(&beta),
            into as *mut c_void,
            data_type(C::DTYPE)?,
            output.leading,
            output.step()?,
            int(output.count)?,
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
