//! Vector operations: products with a matrix, sums and scalings.

use super::handle::{BlasResult, INVALID_VALUE, begin};
use super::number::{Compute, DataType};
use crate::counts;
use crate::status::not_modelled;

/// A vector in device memory. With a negative step it begins with its last element in memory.
#[derive(Clone, Copy, Debug)]
pub struct Vector {
    pub address: u64,
    pub kind: DataType,
    pub length: i32,
    pub step: i32,
}

impl Vector {
    fn at(&self, index: i32) -> u64 {
        let first = if self.step < 0 {
            -i64::from(self.length - 1) * i64::from(self.step)
        } else {
            0
        };
        let element = first + i64::from(index) * i64::from(self.step);
        self.address
            .wrapping_add_signed(element * self.kind.bytes() as i64)
    }

    /// Address and length in bytes of the vector's memory.
    fn span(&self) -> (u64, u64) {
        let steps = u64::from(self.step.unsigned_abs()) * (self.length.max(1) as u64 - 1);
        (
            self.address,
            if self.length <= 0 {
                0
            } else {
                (steps + 1) * self.kind.bytes()
            },
        )
    }

    fn elements(&self) -> u64 {
        self.length.max(0) as u64
    }

    /// The bytes of its elements, without those between them.
    fn bytes(&self) -> u64 {
        self.elements() * self.kind.bytes()
    }

    fn read<C: Compute>(&self, index: i32) -> C {
        // SAFETY: every operation checks the span before it reads, and holds the device's lock since.
        unsafe { self.kind.read(self.at(index)) }
    }

    fn write<C: Compute>(&self, index: i32, value: C) {
        // SAFETY: as for `read`.
        unsafe { self.kind.write(self.at(index), value) }
    }
}

fn wide(kind: DataType) -> bool {
    kind == DataType::F64
}

/// `y = alpha · x + y`, with `alpha` of the given type.
///
/// # Safety
/// `alpha` is readable.
pub unsafe fn axpy(handle: u64, alpha: (u64, DataType), x: Vector, y: Vector) -> BlasResult {
    let Some(device) = begin(handle, "cublasAxpyEx", &[x.span(), y.span()])? else {
        return Ok(());
    };
    counts::library(2 * x.elements(), x.bytes() + y.bytes());
    if !device.does(2 * x.elements()) {
        return Ok(());
    }
    // SAFETY: by contract.
    let alpha: f64 = unsafe { alpha.1.read(alpha.0) };
    for index in 0..x.length {
        if wide(y.kind) {
            y.write(index, alpha * x.read::<f64>(index) + y.read::<f64>(index));
        } else {
            y.write(
                index,
                alpha as f32 * x.read::<f32>(index) + y.read::<f32>(index),
            );
        }
    }
    Ok(())
}

/// `x = alpha · x`, with `alpha` of the given type.
///
/// # Safety
/// `alpha` is readable.
pub unsafe fn scal(handle: u64, alpha: (u64, DataType), x: Vector) -> BlasResult {
    let Some(device) = begin(handle, "cublasScalEx", &[x.span()])? else {
        return Ok(());
    };
    counts::library(x.elements(), x.bytes());
    if !device.does(2 * x.elements()) {
        return Ok(());
    }
    // SAFETY: by contract.
    let alpha: f64 = unsafe { alpha.1.read(alpha.0) };
    for index in 0..x.length {
        if wide(x.kind) {
            x.write(index, alpha * x.read::<f64>(index));
        } else {
            x.write(index, alpha as f32 * x.read::<f32>(index));
        }
    }
    Ok(())
}

/// The sum of the absolute values of `x`.
///
/// # Safety
/// `to` has room for a number of the vector's type.
pub unsafe fn asum(handle: u64, x: Vector, to: u64) -> BlasResult {
    let Some(device) = begin(handle, "cublasAsum", &[x.span()])? else {
        return Ok(());
    };
    if to == 0 {
        return Err(INVALID_VALUE);
    }
    counts::library(x.elements(), x.bytes());
    let length = if device.does(x.elements()) {
        x.length
    } else {
        0
    };
    let sum: f64 = (0..length).map(|index| x.read::<f64>(index).abs()).sum();
    // SAFETY: not null; by contract.
    unsafe { x.kind.write(to, sum) };
    Ok(())
}

/// `y = alpha · op(A) · x + beta · y` for a column-major `A` of `m` rows and `n` columns.
#[derive(Clone, Copy, Debug)]
pub struct Gemv {
    pub operation: u32,
    pub matrix: (u64, i32),
    pub m: i32,
    pub n: i32,
    pub alpha: u64,
    pub beta: u64,
}

/// Computes a [`Gemv`] with all numbers of one type.
///
/// # Safety
/// The scalars are readable.
pub unsafe fn gemv(
    handle: u64,
    call: Gemv,
    x: (u64, i32),
    y: (u64, i32),
    kind: DataType,
) -> BlasResult {
    let Gemv {
        operation,
        matrix: (address, leading),
        m,
        n,
        alpha,
        beta,
    } = call;
    if operation > 2 {
        not_modelled("cublasGemv with conjugation only");
    }
    if m < 0 || n < 0 || leading < m.max(1) {
        return Err(INVALID_VALUE);
    }
    let (rows, columns) = if operation == 0 { (m, n) } else { (n, m) };
    let x = Vector {
        address: x.0,
        kind,
        length: columns,
        step: x.1,
    };
    let y = Vector {
        address: y.0,
        kind,
        length: rows,
        step: y.1,
    };
    let column = |index: i32| {
        let address = address + index as u64 * leading as u64 * kind.bytes();
        Vector {
            address,
            kind,
            length: m,
            step: 1,
        }
    };
    let last = column((n - 1).max(0)).span();
    let whole = if n == 0 {
        (address, 0)
    } else {
        (address, last.0 + last.1 - address)
    };
    let Some(device) = begin(handle, "cublasGemv", &[whole, x.span(), y.span()])? else {
        return Ok(());
    };
    let entries = m as u64 * n as u64;
    let bytes = entries * kind.bytes() + x.bytes() + y.bytes();
    counts::library(2 * entries, bytes);
    if !device.does(2 * entries) {
        return Ok(());
    }
    // SAFETY: by contract.
    let (alpha, beta): (f64, f64) = unsafe { (kind.read(alpha), kind.read(beta)) };
    for row in 0..rows {
        let entry = |index| {
            if operation == 0 {
                column(index).read::<f64>(row)
            } else {
                column(row).read::<f64>(index)
            }
        };
        let sum: f64 = (0..columns)
            .map(|index| entry(index) * x.read::<f64>(index))
            .sum();
        let before = if beta == 0.0 {
            0.0
        } else {
            beta * y.read::<f64>(row)
        };
        y.write(row, alpha * sum + before);
    }
    Ok(())
}
