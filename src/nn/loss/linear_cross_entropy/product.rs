//! Products of matrices that are written, or added, into a part of a larger matrix.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp3, Layout, Result, Tensor, bail};

use crate::nn::kernel::matrix::{Matrix, MatrixMut, Number, multiply_on_all_threads};
use crate::nn::kernel::mismatch;

const NAME: &str = "product";

/// Writes a · b into a matrix, or adds it to what is there, without a temporary of its size; on Metal with one.
///
/// `into` is in the type of sums and has contiguous rows; on Metal it is contiguous. On the CPU `a` and `b` have the same type,
/// any strides. On CUDA `a` and `b` may be f16 or bf16 where `into` is f32; they are contiguous or transposed.
pub fn multiply(into: &Tensor, adds: bool, a: &Tensor, b: &Tensor) -> Result<()> {
    let in_place = match into.device() {
        Device::Cpu => true,
        Device::Cuda(_) => cfg!(feature = "cuda"),
        Device::Metal(_) => false,
    };
    if in_place {
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
            CpuStorage::F32(into) => on_cpu(self.adds, (into, of_into), a, b),
            CpuStorage::F64(into) => on_cpu(self.adds, (into, of_into), a, b),
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
        crate::nn::kernel::cuda::multiply(self.adds, (into, of_into), (a, of_a), (b, of_b))
    }
}

fn on_cpu<T: Number>(
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
