//! Vectors that are added to the rows of a matrix, and their gradients.

use candle_core::{CpuStorage, DType, Layout, Result, Shape, Tensor};

use super::kernel::{
    self, Element, Extent, InPlace, Kernel, Number, Plan, by_rows, in_place, in_range, mismatch,
    rows_of_part, runs_on, slice_of, slice_of_mut,
};

const NAME: &str = "add_to_rows";

/// Adds a vector to each row. On the CPU and on CUDA it does so in place, without a second tensor of that size; no other tensor
/// may share the storage of `rows`.
pub fn add_to_rows(rows: Tensor, bias: &Tensor) -> Result<Tensor> {
    let known = matches!(
        rows.dtype(),
        DType::F32 | DType::F64 | DType::F16 | DType::BF16
    );
    let alike = rows.dtype() == bias.dtype() && rows.device().same_device(bias.device());
    let dense = rows.is_contiguous() && rows.elem_count() > 0;
    if !(known && alike && dense && runs_on(rows.device())) {
        in_range(NAME, [&rows])?;
        return rows.broadcast_add(bias);
    }
    let bias = bias.detach().contiguous()?;
    in_place(NAME, &rows, |rows, layout| match rows {
        InPlace::Cpu(CpuStorage::F32(rows)) => add(rows, layout, &bias),
        InPlace::Cpu(CpuStorage::F64(rows)) => add(rows, layout, &bias),
        InPlace::Cpu(CpuStorage::F16(rows)) => add_narrow(rows, layout, &bias),
        InPlace::Cpu(CpuStorage::BF16(rows)) => add_narrow(rows, layout, &bias),
        #[cfg(feature = "cuda")]
        InPlace::Cuda(rows) => super::kernel::cuda::add_to_rows((rows, layout), &bias),
        _ => Err(mismatch(NAME)),
    })?;
    Ok(rows)
}

fn add<S: Number>(rows: &mut [S], layout: &Layout, bias: &Tensor) -> Result<()> {
    let (storage, of_bias) = bias.storage_and_layout();
    let bias = slice_of::<S>(&storage, of_bias, NAME)?;
    let rows = slice_of_mut(rows, layout, NAME)?;
    by_rows(rows, bias.len(), |_, rows| add_to_each(rows, bias))
}

fn add_narrow<T: Element>(rows: &mut [T], layout: &Layout, bias: &Tensor) -> Result<()> {
    let (storage, of_bias) = bias.storage_and_layout();
    let bias = T::widen(slice_of::<T>(&storage, of_bias, NAME)?);
    let rows = slice_of_mut(rows, layout, NAME)?;
    by_rows(rows, bias.len(), |_, rows| {
        let mut sums = T::widen(rows);
        add_to_each(&mut sums, &bias);
        T::narrow(&sums, rows);
    })
}

fn add_to_each<S: Number>(rows: &mut [S], bias: &[S]) {
    for row in rows.chunks_mut(bias.len().max(1)) {
        row.iter_mut().zip(bias).for_each(|(y, b)| *y += *b);
    }
}

/// Adds up the rows of a contiguous matrix, always in the same order.
pub fn sum_of_rows(rows: &Tensor) -> Result<Tensor> {
    if !runs_on(rows.device()) {
        return rows.sum(0);
    }
    let [sums] = kernel::run(&SumOfRows, [rows])?;
    Ok(sums)
}

/// A product with ones would add up one row after the other in the type itself on the CPU: in f16, 2048 + 1 is 2048. On CUDA it would do so in
/// f32, unless reduced precision is turned on.
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
