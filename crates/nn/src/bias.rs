use candle_core::{Result, Shape, Tensor};

use super::kernel::{self, Extent, Kernel, Number, Plan};
use super::norm::rows_of_part;

/// Adds up the rows of a contiguous matrix, always in the same order.
pub fn sum_of_rows(rows: &Tensor) -> Result<Tensor> {
    if rows.device().is_cpu() {
        let [sums] = kernel::run(&SumOfRows, [rows])?;
        return Ok(sums);
    }
    if rows.elem_count() == 0 {
        return Tensor::zeros(rows.dim(1)?, rows.dtype(), rows.device());
    }
    // On other devices a product with ones sums in parts. candle sums f16 and bf16 in f32 there, unless reduced precision is turned on.
    let ones = Tensor::ones((1, rows.dim(0)?), rows.dtype(), rows.device())?;
    ones.matmul(rows)?.squeeze(0)
}

/// On the CPU a product with ones would add up one row after the other in the type itself: in f16, 2048 + 1 is 2048.
pub struct SumOfRows;

impl Kernel<1, 1> for SumOfRows {
    const NAME: &'static str = "sum_of_rows";

    fn plan(&self, [rows]: [&Tensor; 1]) -> Plan {
        let width = *rows.dims().last().unwrap_or(&0);
        let plan = Plan::of_rows(rows, width, [Extent::Row(width)]);
        Plan {
            at_once: rows_of_part(plan.rows, width),
            outputs: vec![(Shape::from(width), Extent::Block(width))],
            ..plan
        }
    }

    fn cpu<S: Number>(&self, _: usize, [rows]: [&[S]; 1], [sums]: [&mut [S]; 1]) {
        for row in rows.chunks(sums.len().max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += *y);
        }
    }
}
