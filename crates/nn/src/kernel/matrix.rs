//! Products of strided matrices on the CPU, by the crate that candle multiplies matrices with.

use candle_core::{Error, Result};
use gemm::Parallelism;

pub use super::Number;

/// A matrix of elements at any strides.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    strides: [usize; 2],
}

impl<'a, T> Matrix<'a, T> {
    /// `data` begins with the first element.
    pub fn new(data: &'a [T], [rows, columns]: [usize; 2], strides: [usize; 2]) -> Result<Self> {
        check(data.len(), [rows, columns], strides)?;
        Ok(Self {
            data,
            rows,
            columns,
            strides,
        })
    }

    pub fn transposed(self) -> Self {
        let [row, column] = self.strides;
        Self {
            rows: self.columns,
            columns: self.rows,
            strides: [column, row],
            ..self
        }
    }
}

/// A matrix to write, whose rows are contiguous and do not overlap.
pub struct MatrixMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// `stride` is the distance between the beginnings of two rows.
    pub fn new(data: &'a mut [T], [rows, columns]: [usize; 2], stride: usize) -> Result<Self> {
        check(data.len(), [rows, columns], [stride, 1])?;
        if stride < columns {
            return Err(misfit());
        }
        Ok(Self {
            data,
            rows,
            columns,
            stride,
        })
    }
}

/// Writes `factor` · a · b into a matrix, or adds it to what is there, on the calling thread.
pub fn multiply<T: Number>(
    into: MatrixMut<T>,
    adds: bool,
    factor: T,
    a: Matrix<T>,
    b: Matrix<T>,
) -> Result<()> {
    multiply_by(Parallelism::None, into, adds, factor, [a, b])
}

/// Writes a · b into a matrix, or adds it to what is there, on all threads.
pub fn multiply_on_all_threads<T: Number>(
    into: MatrixMut<T>,
    adds: bool,
    a: Matrix<T>,
    b: Matrix<T>,
) -> Result<()> {
    let threads = Parallelism::Rayon(rayon::current_num_threads());
    multiply_by(threads, into, adds, T::one(), [a, b])
}

fn multiply_by<T: Number>(
    threads: Parallelism,
    into: MatrixMut<T>,
    adds: bool,
    factor: T,
    [a, b]: [Matrix<T>; 2],
) -> Result<()> {
    if (a.rows, a.columns, b.columns) != (into.rows, b.rows, into.columns) {
        return Err(misfit());
    }
    let ([a_row, a_column], [b_row, b_column]) = (a.strides, b.strides);
    // SAFETY: `check` proved, for each matrix, that all of its elements lie within its slice. The elements of `into`, which is
    // borrowed mutably, are different ones, as its rows are contiguous and do not overlap. The sizes agree. `Number` is implemented for
    // f32 and f64 only, which the function knows.
    unsafe {
        gemm::gemm(
            into.rows,
            into.columns,
            a.columns,
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
            threads,
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
