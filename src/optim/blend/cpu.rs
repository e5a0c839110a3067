use candle_core::backend::BackendStorage;
use candle_core::utils::barrier_pool;
use candle_core::{CpuStorage, Layout, Result, WithDType};
use parking_lot::Mutex;

use super::{Blend, Scale, out_of_bounds, unsupported};

/// From this many elements on a tensor is shared out among threads, and how many one takes at a time: as candle does it.
pub(super) const SHARED: usize = 64 * 1024;
pub(super) const CHUNK: usize = 16 * 1024;

pub(super) fn scale(op: &Scale, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
    fn scale<T: WithDType>(values: &mut [T], layout: &Layout, keep: f64) -> Result<()> {
        let keep = T::from_f64(keep);
        for value in contiguous(values, layout)? {
            *value *= keep;
        }
        Ok(())
    }
    match storage {
        CpuStorage::F32(values) => scale(values, layout, op.keep),
        CpuStorage::F64(values) => scale(values, layout, op.keep),
        other => Err(unsupported(other.dtype())),
    }
}

pub(super) fn blend(
    op: &Blend,
    into: &mut CpuStorage,
    from: &CpuStorage,
    layouts: (&Layout, &Layout),
) -> Result<()> {
    use CpuStorage as S;
    match (into, from) {
        (S::F32(into), S::F32(from)) => op.run(into, from, layouts, |value| value),
        (S::F64(into), S::F64(from)) => op.run(into, from, layouts, |value| value),
        (S::F32(into), S::F16(from)) => op.run(into, from, layouts, |value| value.to_f32()),
        (S::F32(into), S::BF16(from)) => op.run(into, from, layouts, |value| value.to_f32()),
        (_, from) => Err(unsupported(from.dtype())),
    }
}

impl Blend {
    #[inline]
    fn run<D: WithDType, S: Copy + Sync>(
        &self,
        into: &mut [D],
        from: &[S],
        (into_layout, from_layout): (&Layout, &Layout),
        convert: impl Fn(S) -> D + Copy + Sync,
    ) -> Result<()> {
        let into = contiguous(into, into_layout)?;
        let Some((start, end)) = from_layout.contiguous_offsets() else {
            let from = offsets(from_layout).filter_map(|offset| from.get(offset));
            self.blend(into, from.map(|&value| convert(value)));
            return Ok(());
        };
        let from = from.get(start..end).ok_or_else(out_of_bounds)?;
        if into.len() < SHARED {
            self.blend(into, from.iter().map(|&value| convert(value)));
            return Ok(());
        }
        let units = into.chunks_mut(CHUNK).zip(from.chunks(CHUNK));
        let units: Vec<_> = units.map(Mutex::new).collect();
        // candle's own threads: they are awake between its operations, which a second pool's would not be.
        barrier_pool().execute_chunked(units.len(), |range| {
            for unit in units.get(range).unwrap_or_default() {
                let (into, from) = &mut *unit.lock();
                self.blend(into, from.iter().map(|&value| convert(value)));
            }
        });
        Ok(())
    }

    #[inline]
    fn blend<D: WithDType>(&self, into: &mut [D], from: impl Iterator<Item = D>) {
        let (keep, add) = (D::from_f64(self.keep), D::from_f64(self.add));
        let pairs = into.iter_mut().zip(from);
        // Not `0 · old + …`: what a buffer holds from the window before may be infinite or not a number.
        if self.keep == 0. && self.add == 1. {
            pairs.for_each(|(into, from)| *into = from);
        } else if self.keep == 0. {
            pairs.for_each(|(into, from)| *into = add * from);
        } else {
            pairs.for_each(|(into, from)| *into = keep * *into + add * from);
        }
    }
}

/// Where a strided tensor's elements lie, in the order of its indices. candle's own walk is private to it, and its gradients
/// are almost always contiguous: `backward` adds each to a tensor of zeros.
fn offsets(layout: &Layout) -> impl Iterator<Item = usize> + '_ {
    let axes = layout.dims().iter().zip(layout.stride()).rev();
    (0..layout.shape().elem_count()).map(move |mut index| {
        axes.clone()
            .fold(layout.start_offset(), |offset, (&size, &stride)| {
                let along = index % size;
                index /= size;
                offset + along * stride
            })
    })
}

fn contiguous<'a, T>(values: &'a mut [T], layout: &Layout) -> Result<&'a mut [T]> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let values = range.and_then(|range| values.get_mut(range));
    values.ok_or_else(out_of_bounds)
}
