//! What is written, or added, to a part of a larger matrix without a temporary of its size: products of matrices, and a factor.

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor};

use crate::kernel::matrix::{self, Matrix, MatrixMut};
use crate::kernel::{
    InPlace, Number, by_rows, in_place, mismatch, runs_on, slice_of, slice_of_mut,
};

const NAME: &str = "product";
const SCALE: &str = "scale";

type Source<'a> = (&'a Storage, &'a Layout);

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
        InPlace::Cuda(into) => crate::kernel::cuda::multiply(adds, (into, layout), a, b),
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

/// Multiplies values by a number that lies on their device. `values`, at least one, are contiguous and share their storage with no
/// other tensor; `factor` has one element of the same type, f32 or f64.
pub fn scale(values: &Tensor, factor: &Tensor) -> Result<()> {
    if !runs_on(values.device()) {
        return values.slice_set(&values.broadcast_mul(factor)?, 0, 0);
    }
    in_place(SCALE, values, |values, layout| match values {
        InPlace::Cpu(CpuStorage::F32(values)) => scaled(values, layout, factor),
        InPlace::Cpu(CpuStorage::F64(values)) => scaled(values, layout, factor),
        #[cfg(feature = "cuda")]
        InPlace::Cuda(values) => crate::kernel::cuda::scale((values, layout), factor),
        _ => Err(mismatch(SCALE)),
    })
}

fn scaled<T: Number>(values: &mut [T], layout: &Layout, factor: &Tensor) -> Result<()> {
    let (storage, of_factor) = factor.storage_and_layout();
    let &[factor] = slice_of::<T>(&storage, of_factor, SCALE)? else {
        return Err(mismatch(SCALE));
    };
    let values = slice_of_mut(values, layout, SCALE)?;
    if factor == T::one() {
        return Ok(());
    }
    by_rows(values, 1, |_, values| {
        values.iter_mut().for_each(|value| *value *= factor);
    })
}
