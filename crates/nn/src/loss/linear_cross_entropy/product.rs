//! What is written, or added, to a part of a larger matrix without a temporary of its size: products of matrices, and a factor.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp2, InplaceOp3, Layout, Result, Tensor, bail};

use crate::kernel::matrix::{Matrix, MatrixMut, Number, multiply_on_all_threads};
use crate::kernel::{by_rows, mismatch};

const NAME: &str = "product";

/// Whether a device has kernels that write in place.
pub fn in_place(device: &Device) -> bool {
    device.is_cpu() || device.is_cuda() && cfg!(feature = "cuda")
}

/// Writes a · b into a matrix, or adds it to what is there, without a temporary of its size; on Metal with one.
///
/// `into` is in the type of sums and has contiguous rows; on Metal it is contiguous. On the CPU `a` and `b` have the same type,
/// any strides. On CUDA `a` and `b` may be f16 or bf16 where `into` is f32; they are contiguous or transposed.
pub fn multiply(into: &Tensor, adds: bool, a: &Tensor, b: &Tensor) -> Result<()> {
    if in_place(into.device()) {
        return into.inplace_op3(a, b, &Product { adds });
    }
    let product = a.contiguous()?.matmul(&b.contiguous()?)?;
    let product = product.to_dtype(into.dtype())?;
    match adds {
        true => into.slice_set(&(into + product)?, 0, 0),
        false => into.slice_set(&product, 0, 0),
    }
}

struct Product {
    adds: bool,
}

impl InplaceOp3 for Product {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        into: &mut CpuStorage,
        of_into: &Layout,
        a: &CpuStorage,
        of_a: &Layout,
        b: &CpuStorage,
        of_b: &Layout,
    ) -> Result<()> {
        let (a, b) = ((a, of_a), (b, of_b));
        match into {
            CpuStorage::F32(into) => multiplied(self.adds, (into, of_into), a, b),
            CpuStorage::F64(into) => multiplied(self.adds, (into, of_into), a, b),
            _ => bail!("{NAME}: a sum that is neither f32 nor f64"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        into: &mut CudaStorage,
        of_into: &Layout,
        a: &CudaStorage,
        of_a: &Layout,
        b: &CudaStorage,
        of_b: &Layout,
    ) -> Result<()> {
        crate::kernel::cuda::multiply(self.adds, (into, of_into), (a, of_a), (b, of_b))
    }
}

fn multiplied<T: Number>(
    adds: bool,
    (into, of_into): (&mut [T], &Layout),
    a: (&CpuStorage, &Layout),
    b: (&CpuStorage, &Layout),
) -> Result<()> {
    let (&[row, _], start) = (of_into.stride(), of_into.start_offset()) else {
        return Err(mismatch(NAME));
    };
    let shape = of_into.shape().dims2()?;
    let into = into.get_mut(start..).ok_or_else(|| mismatch(NAME))?;
    let into = MatrixMut::new(into, shape.into(), row)?;
    multiply_on_all_threads(into, adds, matrix(a)?, matrix(b)?)
}

fn matrix<'a, T: Number>((storage, layout): (&'a CpuStorage, &Layout)) -> Result<Matrix<'a, T>> {
    let &[row, column] = layout.stride() else {
        return Err(mismatch(NAME));
    };
    let data = T::cpu_storage_as_slice(storage)?.get(layout.start_offset()..);
    let data = data.ok_or_else(|| mismatch(NAME))?;
    Matrix::new(data, layout.shape().dims2()?.into(), [row, column])
}

/// Multiplies values by a number that lies on their device. `values`, at least one, are contiguous and share their storage with no
/// other tensor; `factor` has one element of the same type, f32 or f64.
pub fn scale(values: &Tensor, factor: &Tensor) -> Result<()> {
    match in_place(values.device()) {
        true => values.inplace_op2(factor, &Scale),
        false => values.slice_set(&values.broadcast_mul(factor)?, 0, 0),
    }
}

struct Scale;

impl InplaceOp2 for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn cpu_fwd(
        &self,
        values: &mut CpuStorage,
        of_values: &Layout,
        factor: &CpuStorage,
        of_factor: &Layout,
    ) -> Result<()> {
        let at = of_factor.start_offset();
        match (values, factor) {
            (CpuStorage::F32(values), CpuStorage::F32(factor)) => {
                scaled(values, of_values, factor.get(at))
            }
            (CpuStorage::F64(values), CpuStorage::F64(factor)) => {
                scaled(values, of_values, factor.get(at))
            }
            _ => bail!("scale: sums that are neither f32 nor f64"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        values: &mut CudaStorage,
        of_values: &Layout,
        factor: &CudaStorage,
        of_factor: &Layout,
    ) -> Result<()> {
        crate::kernel::cuda::scale((values, of_values), (factor, of_factor))
    }
}

fn scaled<T: Number>(values: &mut [T], layout: &Layout, factor: Option<&T>) -> Result<()> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let values = range.and_then(|range| values.get_mut(range));
    let (Some(values), Some(factor)) = (values, factor) else {
        return Err(mismatch("scale"));
    };
    if *factor != T::one() {
        by_rows(values, 1, |_, values| {
            values.iter_mut().for_each(|value| *value *= *factor);
        });
    }
    Ok(())
}
