use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use num_traits::Zero;

use super::kernel::{Element, mismatch};
use super::norm::cells::Cells;

/// Adds up the rows of a contiguous matrix, always in the same order.
pub fn sum_of_rows(rows: &Tensor) -> Result<Tensor> {
    if rows.device().is_cpu() {
        return rows.apply_op1_no_bwd(&SumOfRows);
    }
    if rows.elem_count() == 0 {
        return Tensor::zeros(rows.dim(1)?, rows.dtype(), rows.device());
    }
    // On other devices a product with ones sums in parts. candle sums f16 and bf16 in f32 there, unless reduced precision is turned on.
    let ones = Tensor::ones((1, rows.dim(0)?), rows.dtype(), rows.device())?;
    ones.matmul(rows)?.squeeze(0)
}

/// On the CPU a product with ones would add up one row after the other in the type itself: in f16, 2048 + 1 is 2048.
struct SumOfRows;

impl CustomOp1 for SumOfRows {
    fn name(&self) -> &'static str {
        "sum_of_rows"
    }

    fn cpu_fwd(&self, rows: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        match rows {
            CpuStorage::F32(rows) => summed(rows, layout),
            CpuStorage::F64(rows) => summed(rows, layout),
            CpuStorage::F16(rows) => summed(rows, layout),
            CpuStorage::BF16(rows) => summed(rows, layout),
            _ => Err(mismatch(self.name())),
        }
    }
}

fn summed<T: Element>(rows: &[T], layout: &Layout) -> Result<(CpuStorage, Shape)> {
    let offsets = layout.contiguous_offsets();
    let rows = offsets.and_then(|(start, end)| rows.get(start..end));
    let rows = rows.ok_or_else(|| mismatch(SumOfRows.name()))?;
    let (outer, cells) = layout.shape().dims2()?;
    let inner = 1;
    let cells_of_rows = Cells {
        outer,
        cells,
        inner,
    };
    let zeros = vec![T::Sum::zero(); cells];
    let sums = cells_of_rows.sums([rows, rows], &zeros, |_, y, _| y);
    let sums: Vec<T> = sums.into_iter().take(cells).map(T::narrow).collect();
    Ok((T::to_cpu_storage_owned(sums), cells.into()))
}
