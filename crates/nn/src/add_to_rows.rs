use candle_core::{CpuStorage, DType, Layout, Result, Storage, Tensor};

use super::kernel::{Element, InPlace, Number, by_rows, in_place, mismatch, runs_on, slice_of};

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
        return rows.broadcast_add(bias);
    }
    let bias = bias.detach().contiguous()?;
    let (bias, of_bias) = bias.storage_and_layout();
    in_place(NAME, &rows, |rows, layout| match rows {
        InPlace::Cpu(CpuStorage::F32(rows)) => add(rows, layout, &bias, of_bias),
        InPlace::Cpu(CpuStorage::F64(rows)) => add(rows, layout, &bias, of_bias),
        InPlace::Cpu(CpuStorage::F16(rows)) => add_narrow(rows, layout, &bias, of_bias),
        InPlace::Cpu(CpuStorage::BF16(rows)) => add_narrow(rows, layout, &bias, of_bias),
        #[cfg(feature = "cuda")]
        InPlace::Cuda(rows) => super::kernel::cuda::add_to_rows((rows, layout), (&bias, of_bias)),
        _ => Err(mismatch(NAME)),
    })?;
    Ok(rows)
}

fn add<S: Number>(rows: &mut [S], layout: &Layout, bias: &Storage, of_bias: &Layout) -> Result<()> {
    let bias = slice_of::<S>(bias, of_bias, NAME)?;
    let rows = dense(rows, layout)?;
    by_rows(rows, bias.len(), |_, rows| add_to_each(rows, bias))
}

fn add_narrow<T: Element>(
    rows: &mut [T],
    layout: &Layout,
    bias: &Storage,
    of_bias: &Layout,
) -> Result<()> {
    let bias = T::widen(slice_of::<T>(bias, of_bias, NAME)?);
    let rows = dense(rows, layout)?;
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

fn dense<'a, T>(rows: &'a mut [T], layout: &Layout) -> Result<&'a mut [T]> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let rows = range.and_then(|range| rows.get_mut(range));
    rows.ok_or_else(|| mismatch(NAME))
}
