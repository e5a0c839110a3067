//! Tensors on the CPU as slices of matrices.

use candle_core::{Error, Result, Shape, Storage, Tensor};

use crate::kernel::matrix::{Matrix, Number};
use crate::kernel::tensor;

/// A tensor of 4 dimensions at any strides, 0 for a dimension of length 1.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    data: &'a [T],
    strides: [usize; 4],
    width: usize,
}

impl<'a, T: Number> View<'a, T> {
    /// Some rows of the matrix of a head.
    pub fn rows(
        self,
        batch: usize,
        head: usize,
        first: usize,
        count: usize,
    ) -> Result<Matrix<'a, T>> {
        let [of_batch, of_head, of_row, of_column] = self.strides;
        let start = batch * of_batch + head * of_head + first * of_row;
        let data = self.data.get(start..).ok_or_else(misfit)?;
        Matrix::new(data, [count, self.width], [of_row, of_column])
    }

    /// A row of contiguous elements.
    pub fn row(self, batch: usize, head: usize, row: usize) -> Result<&'a [T]> {
        self.part([batch, head, row, 0], self.width)
    }

    /// Contiguous elements from a place on, or the one that stands for all.
    pub fn part(self, at: [usize; 4], len: usize) -> Result<&'a [T]> {
        let start = at.iter().zip(self.strides).map(|(at, of)| at * of);
        let start: usize = start.sum();
        let len = if self.strides[3] == 0 { 1 } else { len };
        self.data.get(start..start + len).ok_or_else(misfit)
    }
}

/// Calls `work` with the elements of tensors.
pub fn with_views<T: Number, const N: usize, R>(
    tensors: [&Tensor; N],
    work: impl FnOnce([View<T>; N]) -> Result<R>,
) -> Result<R> {
    let storages = tensors.map(Tensor::storage_and_layout);
    let none = View {
        data: &[],
        strides: [0; 4],
        width: 0,
    };
    let mut views = [none; N];
    for (view, (storage, layout)) in views.iter_mut().zip(&storages) {
        let Storage::Cpu(storage) = &**storage else {
            return Err(misfit());
        };
        let data = T::cpu_storage_as_slice(storage)?;
        let mut strides: [usize; 4] = layout.stride().try_into().map_err(|_| misfit())?;
        for (stride, _) in strides
            .iter_mut()
            .zip(layout.dims())
            .filter(|(_, len)| **len == 1)
        {
            *stride = 0;
        }
        *view = View {
            data: data.get(layout.start_offset()..).ok_or_else(misfit)?,
            strides,
            width: layout.dims().last().copied().unwrap_or(1),
        };
    }
    work(views)
}

pub fn misfit() -> Error {
    Error::Msg("attention: a tensor does not fit".into()).bt()
}

/// A tensor outside the graph.
pub fn from_vec<T: Number>(values: Vec<T>, shape: impl Into<Shape>) -> Tensor {
    tensor(Storage::Cpu(T::to_cpu_storage_owned(values)), shape.into())
}
