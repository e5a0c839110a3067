//! Products of matrices that are made or changed in place, without temporaries of their size.

use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor};

use super::matrix::{self, Matrix, MatrixMut};
use super::storage::{InPlace, in_place, mismatch};
use super::{Number, runs_on};

const NAME: &str = "product";

type Source<'a> = (&'a Storage, &'a Layout);

/// `factor` · a · b in a type. Where candle multiplies, it does so in the type of `a`.
pub fn product(factor: f64, a: &Tensor, b: &Tensor, dtype: DType) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if a.device().is_cuda() {
        return super::cuda::product_of(factor, a, b, dtype);
    }
    scaled(factor, &a.matmul(b)?.to_dtype(dtype)?)
}

pub fn scaled(factor: f64, tensor: &Tensor) -> Result<Tensor> {
    match factor == 1. {
        true => Ok(tensor.clone()),
        false => tensor * factor,
    }
}

/// Writes a · b into a matrix, or adds it to what is there, without a temporary of its size; on Metal with one.
///
/// `into` is in the type of sums and has contiguous rows; on Metal it is contiguous. On the CPU `a` and `b` have the same type,
/// any strides. On CUDA `a` and `b` may be f16 or bf16 where `into` is f32; they are contiguous or transposed.
pub fn multiply(into: &Tensor, adds: bool, a: &Tensor, b: &Tensor) -> Result<()> {
    if !runs_on(into.device()) {
        let product = a.contiguous()?.matmul(&b.contiguous()?)?;
        let product = product.to_dtype(into.dtype())?;
        return match adds {
            true => into.slice_set(&(into + product)?, 0, 0),
            false => into.slice_set(&product, 0, 0),
        };
    }
    let ((a, of_a), (b, of_b)) = (a.storage_and_layout(), b.storage_and_layout());
    let (a, b) = ((&*a, of_a), (&*b, of_b));
    in_place(NAME, into, |into, layout| match into {
        InPlace::Cpu(CpuStorage::F32(into)) => multiplied(adds, (into, layout), a, b),
        InPlace::Cpu(CpuStorage::F64(into)) => multiplied(adds, (into, layout), a, b),
        #[cfg(feature = "cuda")]
        InPlace::Cuda(into) => super::cuda::multiply(1., adds, (into, layout), a, b),
        _ => Err(mismatch(NAME)),
    })
}

fn multiplied<T: Number>(
    adds: bool,
    (into, of_into): (&mut [T], &Layout),
    a: Source,
    b: Source,
) -> Result<()> {
    let (&[row, _], start) = (of_into.stride(), of_into.start_offset()) else {
        return Err(mismatch(NAME));
    };
    let shape = of_into.shape().dims2()?;
    let into = into.get_mut(start..).ok_or_else(|| mismatch(NAME))?;
    let into = MatrixMut::new(into, shape.into(), row)?.on_all_threads();
    matrix::multiply(into, adds, T::one(), matrix(a)?, matrix(b)?)
}

fn matrix<'a, T: Number>((storage, layout): Source<'a>) -> Result<Matrix<'a, T>> {
    let (Storage::Cpu(storage), &[row, column]) = (storage, layout.stride()) else {
        return Err(mismatch(NAME));
    };
    let data = T::cpu_storage_as_slice(storage)?.get(layout.start_offset()..);
    let data = data.ok_or_else(|| mismatch(NAME))?;
    Matrix::new(data, layout.shape().dims2()?.into(), [row, column])
}
