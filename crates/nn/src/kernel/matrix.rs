//! Products of strided matrices on the CPU, by the crate that candle multiplies matrices with.

use candle_core::{Error, Result};
use gemm::Parallelism;

use super::Number;

/// A matrix of elements at any strides.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    data: &'a [T],
    /// Rows and columns.
    shape: [usize; 2],
    strides: [usize; 2],
}

impl<'a, T> Matrix<'a, T> {
    /// `data` begins with the first element.
    pub fn new(data: &'a [T], shape: [usize; 2], strides: [usize; 2]) -> Result<Self> {
        check(data.len(), shape, strides)?;
        Ok(Self {
            data,
            shape,
            strides,
        })
    }

    pub fn transposed(mut self) -> Self {
        self.shape.reverse();
        self.strides.reverse();
        self
    }
}

/// A matrix to write, whose rows are contiguous and do not overlap.
pub struct MatrixMut<'a, T> {
    data: &'a mut [T],
    shape: [usize; 2],
    stride: usize,
    threads: Parallelism,
}

impl<'a, T> MatrixMut<'a, T> {
    /// `stride` is the distance between the beginnings of two rows.
    pub fn new(data: &'a mut [T], shape: [usize; 2], stride: usize) -> Result<Self> {
        check(data.len(), shape, [stride, 1])?;
        match stride < shape[1] {
            true => Err(misfit()),
            false => Ok(Self {
                data,
                shape,
                stride,
                threads: Parallelism::None,
            }),
        }
    }

    /// The same, which all threads write.
    pub fn on_all_threads(mut self) -> Self {
        self.threads = Parallelism::Rayon(rayon::current_num_threads());
        self
    }
}

/// Writes `factor` · a · b into a matrix, or adds it to what is there, on the calling thread or on all threads.
pub fn multiply<T: Number>(
    into: MatrixMut<T>,
    adds: bool,
    factor: T,
    a: Matrix<T>,
    b: Matrix<T>,
) -> Result<()> {
    let ([rows, depth], [of_b, columns]) = (a.shape, b.shape);
    if depth != of_b || into.shape != [rows, columns] {
        return Err(misfit());
    }
    let ([a_row, a_column], [b_row, b_column]) = (a.strides, b.strides);
    // SAFETY: `check` proved, for each matrix, that all of its elements lie within its slice. The elements of `into`, which is
    // borrowed mutably, are different ones, as its rows are contiguous and do not overlap. The sizes agree. `Number` is implemented for
    // f32 and f64 only, which the function knows.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            into.data.as_mut_ptr(),
            1,
            into.stride as isize,
            adds,
            a.data.as_ptr(),
            a_column as isize,
            a_row as isize,
            b.data.as_ptr(),
            b_column as isize,
            b_row as isize,
            T::one(),
            factor,
            false,
            false,
            false,
            into.threads,
        );
    }
    Ok(())
}

/// Checks that all elements of a matrix lie among `len` elements.
fn check(len: usize, [rows, columns]: [usize; 2], [row, column]: [usize; 2]) -> Result<()> {
    if rows == 0 || columns == 0 {
        return Ok(());
    }
    let last = (rows - 1)
        .checked_mul(row)
        .and_then(|offset| (columns - 1).checked_mul(column)?.checked_add(offset));
    match last {
        Some(last) if last < len => Ok(()),
        _ => Err(misfit()),
    }
}

fn misfit() -> Error {
    Error::Msg("a product of matrices: a matrix does not fit".into()).bt()
}
