//! One description for all forms of matrix products, single and batched.

use super::handle::{BlasResult, INVALID_VALUE, begin};
use super::number::{Compute, DataType};
use super::product::{Matrix, Sizes, multiply};
use crate::counts;
use crate::status::not_modelled;

/// The addresses of a batch's matrices.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// At this distance, in elements.
    Strided(u64, i64),
    /// Given by an array of pointers in device memory.
    Listed(u64),
}

/// An operand as cuBLAS describes it.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    pub place: Place,
    pub kind: DataType,
    pub leading: i32,
    /// `cublasOperation_t`; conjugation has no effect on real numbers.
    pub operation: u32,
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    pub handle: u64,
    pub name: &'static str,
    pub m: i32,
    pub n: i32,
    pub k: i32,
    /// Address of a number of the type `scalars`.
    pub alpha: u64,
    pub a: Operand,
    pub b: Operand,
    pub beta: u64,
    pub c: Operand,
    pub batch: i32,
    pub scalars: DataType,
}

impl Operand {
    fn matrix(&self, index: i32) -> Matrix {
        let address = match self.place {
            Place::Strided(start, stride) => start.wrapping_add_signed(
                stride
                    .wrapping_mul(index.into())
                    .wrapping_mul(self.kind.bytes() as i64),
            ),
            // SAFETY: `Gemm::run` has checked that the list is live.
            Place::Listed(list) => unsafe {
                (list as *const u64).add(index as usize).read_unaligned()
            },
        };
        Matrix {
            address,
            kind: self.kind,
            leading: self.leading as u64,
            transposed: self.operation != 0,
        }
    }
}

impl Gemm {
    /// Computes the products.
    ///
    /// # Safety
    /// The scalars are readable, and lists of pointers hold one for each of the batch.
    pub unsafe fn run(self) -> BlasResult {
        let sizes = [self.m, self.n, self.k, self.batch].map(usize::try_from);
        let [Ok(rows), Ok(columns), Ok(depth), Ok(batch)] = sizes else {
            return Err(INVALID_VALUE);
        };
        if self.a.operation > 2 || self.b.operation > 2 {
            not_modelled(&format!(
                "{} with operations {} and {}",
                self.name, self.a.operation, self.b.operation
            ));
        }
        let stored = |operand: &Operand, rows: usize, columns: usize| {
            let height = if operand.operation == 0 {
                rows
            } else {
                columns
            };
            operand.leading as i64 >= height.max(1) as i64
        };
        if !stored(&self.a, rows, depth)
            || !stored(&self.b, depth, columns)
            || !stored(&self.c, rows, columns)
        {
            return Err(INVALID_VALUE);
        }
        let lists: Vec<(u64, u64)> = [self.a, self.b, self.c]
            .iter()
            .filter_map(|operand| match operand.place {
                Place::Listed(list) => Some((list, batch as u64 * 8)),
                Place::Strided(..) => None,
            })
            .collect();
        let Some(mut device) = begin(self.handle, self.name, &lists)? else {
            return Ok(());
        };
        let elements = [
            (self.a, rows * depth),
            (self.b, depth * columns),
            (self.c, rows * columns),
        ];
        let bytes = elements.map(|(operand, elements)| elements as u64 * operand.kind.bytes());
        let sizes = [rows, columns, depth, batch].map(|size| size as u64);
        let flops = sizes.into_iter().fold(2, u64::saturating_mul);
        let does = device.does(flops);
        counts::library(flops, bytes.iter().sum::<u64>() * batch as u64);
        let sizes = Sizes {
            rows,
            columns,
            depth,
        };
        for index in 0..self.batch {
            let (a, b, c) = (
                self.a.matrix(index),
                self.b.matrix(index),
                self.c.matrix(index),
            );
            let operands = [(a, rows, depth), (b, depth, columns), (c, rows, columns)];
            for (matrix, rows, columns) in operands {
                let bytes = matrix.bytes(rows, columns);
                if !device.memory.covers(matrix.address, bytes) {
                    let address = matrix.address;
                    eprintln!(
                        "simulated CUDA: {}: {bytes} bytes at {address:#x} are not live",
                        self.name
                    );
                    device.faults.lost = Some(crate::status::Status::ILLEGAL_ADDRESS);
                    return Ok(());
                }
            }
            if !does {
                device.note_written(c.address, 0, false);
                continue;
            }
            // SAFETY: all three were just checked, and stay live while the device is locked; the scalars by contract.
            unsafe {
                if self.scalars == DataType::F64 {
                    self.one::<f64>(sizes, a, b, c);
                } else {
                    self.one::<f32>(sizes, a, b, c);
                }
            }
        }
        Ok(())
    }

    /// # Safety
    /// The scalars are readable, and the matrices have these sizes.
    unsafe fn one<C: Compute>(&self, sizes: Sizes, a: Matrix, b: Matrix, c: Matrix) {
        // SAFETY: by contract.
        unsafe {
            let alpha: C = self.scalars.read(self.alpha);
            let beta: C = self.scalars.read(self.beta);
            multiply(sizes, alpha, a, b, beta, c);
        }
    }
}
