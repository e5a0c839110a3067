use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Layout, Result, WithDType};

use super::{Blend, Scale, out_of_bounds, unsupported};
use crate::optim::cpu::{CHUNK, in_stretches, is_shared, offsets};

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
            let from = offsets(from_layout, 0).filter_map(|offset| from.get(offset));
            self.blend(into, from.map(|&value| convert(value)));
            return Ok(());
        };
        let from = from.get(start..end).ok_or_else(out_of_bounds)?;
        if !is_shared(into.len()) {
            self.blend(into, from.iter().map(|&value| convert(value)));
            return Ok(());
        }
        in_stretches(into, CHUNK, true, |start, into| {
            let from = from.get(start..).unwrap_or_default();
            self.blend(into, from.iter().map(|&value| convert(value)));
        });
        Ok(())
    }

    #[inline]
    fn blend<D: WithDType>(&self, into: &mut [D], from: impl Iterator<Item = D>) {
        let (keep, add) = (D::from_f64(self.keep), D::from_f64(self.add));
        let pairs = into.iter_mut().zip(from);
        // Not `0 · old + …`: the old values may be infinite or NaN.
        if self.keep == 0. && self.add == 1. {
            pairs.for_each(|(into, from)| *into = from);
        } else if self.keep == 0. {
            pairs.for_each(|(into, from)| *into = add * from);
        } else {
            pairs.for_each(|(into, from)| *into = keep * *into + add * from);
        }
    }
}

fn contiguous<'a, T>(values: &'a mut [T], layout: &Layout) -> Result<&'a mut [T]> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let values = range.and_then(|range| values.get_mut(range));
    values.ok_or_else(out_of_bounds)
}
