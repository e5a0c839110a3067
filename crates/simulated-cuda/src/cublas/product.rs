//! The product of two matrices. Operands are packed into panels, which a small kernel multiplies in contiguous loops.

use super::number::{Compute, DataType};

/// Rows of a panel of the left operand, and columns of one of the right operand.
const ROWS: usize = 8;
const COLUMNS: usize = 4;

/// A matrix in device memory, column-major; `transposed` swaps its two indices.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub address: u64,
    pub kind: DataType,
    /// Elements from one stored column to the next.
    pub leading: u64,
    pub transposed: bool,
}

impl Matrix {
    fn at(&self, row: usize, column: usize) -> u64 {
        let (row, column) = if self.transposed {
            (column, row)
        } else {
            (row, column)
        };
        self.address + (row as u64 + column as u64 * self.leading) * self.kind.bytes()
    }

    /// Bytes from the first to the last element of a matrix with this many rows and columns.
    pub fn bytes(&self, rows: usize, columns: usize) -> u64 {
        if rows == 0 || columns == 0 {
            return 0;
        }
        self.at(rows - 1, columns - 1) - self.address + self.kind.bytes()
    }
}

/// Packs `lines` × `depth` elements into panels of `width` lines, each with the lines of one depth side by side.
///
/// # Safety
/// `address(line, depth)` holds an element of `kind` for every line and depth.
unsafe fn pack<C: Compute>(
    lines: usize,
    depth: usize,
    width: usize,
    kind: DataType,
    address: impl Fn(usize, usize) -> u64,
) -> Vec<C> {
    let mut packed = vec![C::default(); lines.div_ceil(width) * width * depth];
    for line in 0..lines {
        let start = line / width * width * depth + line % width;
        for step in 0..depth {
            // SAFETY: by contract.
            packed[start + step * width] = unsafe { kind.read(address(line, step)) };
        }
    }
    packed
}

/// Multiplies one panel of each operand.
fn tile<C: Compute>(left: &[C], right: &[C]) -> [[C; ROWS]; COLUMNS] {
    let mut sums = [[C::default(); ROWS]; COLUMNS];
    for (left, right) in left
        .as_chunks::<ROWS>()
        .0
        .iter()
        .zip(right.as_chunks::<COLUMNS>().0)
    {
        for (sums, &factor) in sums.iter_mut().zip(right) {
            for (sum, &value) in sums.iter_mut().zip(left) {
                *sum += value * factor;
            }
        }
    }
    sums
}

/// The sizes of a product: `rows` × `depth` times `depth` × `columns`.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
}

/// `to = alpha · left · right + beta · to`; `to` is not read when `beta` is zero.
///
/// # Safety
/// The three matrices lie in memory with the given sizes, and `to` overlaps neither operand.
pub unsafe fn multiply<C: Compute>(
    sizes: Sizes,
    alpha: C,
    left: Matrix,
    right: Matrix,
    beta: C,
    to: Matrix,
) {
    let Sizes {
        rows,
        columns,
        depth,
    } = sizes;
    // SAFETY: by contract, for both.
    let (left, right) = unsafe {
        (
            pack::<C>(rows, depth, ROWS, left.kind, |line, step| {
                left.at(line, step)
            }),
            pack::<C>(columns, depth, COLUMNS, right.kind, |line, step| {
                right.at(step, line)
            }),
        )
    };
    for column in (0..columns).step_by(COLUMNS) {
        let right = &right[column * depth..(column + COLUMNS) * depth];
        for row in (0..rows).step_by(ROWS) {
            let sums = tile(&left[row * depth..(row + ROWS) * depth], right);
            for (j, sums) in sums.iter().enumerate().take(columns - column) {
                for (i, &sum) in sums.iter().enumerate().take(rows - row) {
                    let address = to.at(row + i, column + j);
                    let mut value = alpha * sum;
                    if beta != C::default() {
                        // SAFETY: within `to`, by contract.
                        value += beta * unsafe { to.kind.read::<C>(address) };
                    }
                    // SAFETY: within `to`, by contract.
                    unsafe { to.kind.write(address, value) };
                }
            }
        }
    }
}
