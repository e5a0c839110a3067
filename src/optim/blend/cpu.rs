use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout, Result};
use half::{bf16, f16};

use super::{Blend, out_of_bounds, unsupported};
use crate::optim::cpu::{
    CHUNK, Gradient, Real, Stored, in_blocks, in_stretches, is_shared, values_mut,
};

pub(super) fn scale(op: &Blend, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
    match storage.dtype() {
        DType::F32 => scale_in::<f32>(op, storage, layout),
        DType::F64 => scale_in::<f64>(op, storage, layout),
        other => Err(unsupported(other)),
    }
}

fn scale_in<C: Real>(op: &Blend, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
    let keep = C::from_f64(op.keep);
    for value in contiguous::<C>(storage, layout)? {
        *value *= keep;
    }
    Ok(())
}

pub(super) fn blend(
    op: &Blend,
    into: &mut CpuStorage,
    from: &CpuStorage,
    layouts: (&Layout, &Layout),
) -> Result<()> {
    match (into.dtype(), from.dtype()) {
        (DType::F32, DType::F32) => op.run::<f32>(into, from, layouts),
        (DType::F64, DType::F64) => op.run::<f64>(into, from, layouts),
        (DType::F32, DType::F16) => op.run::<f16>(into, from, layouts),
        (DType::F32, DType::BF16) => op.run::<bf16>(into, from, layouts),
        (_, from) => Err(unsupported(from)),
    }
}

impl Blend {
    fn run<S: Stored>(
        &self,
        into: &mut CpuStorage,
        from: &CpuStorage,
        (into_layout, from_layout): (&Layout, &Layout),
    ) -> Result<()> {
        let into = contiguous::<S::Real>(into, into_layout)?;
        let from = Gradient::<S>::new(from, from_layout, 1., f64::INFINITY)?;
        let is_shared = is_shared(into.len());
        in_stretches(into, CHUNK, is_shared, |start, into| {
            if let Some(from) = from.slice(start) {
                return self.blend(into, from);
            }
            in_blocks(0..into.len(), |at, block| {
                from.load(start + at, block);
                self.blend(into.get_mut(at..).unwrap_or_default(), block);
            });
        });
        Ok(())
    }

    fn blend<C: Real>(&self, into: &mut [C], from: &[C]) {
        let (keep, add) = (C::from_f64(self.keep), C::from_f64(self.add));
        let pairs = into.iter_mut().zip(from);
        // Not `0 · old + …`: the old values may be infinite or NaN.
        if self.keep == 0. && self.add == 1. {
            pairs.for_each(|(into, from)| *into = *from);
        } else if self.keep == 0. {
            pairs.for_each(|(into, from)| *into = add * *from);
        } else {
            pairs.for_each(|(into, from)| *into = keep * *into + add * *from);
        }
    }
}

fn contiguous<'a, C: Real>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [C]> {
    let range = layout.contiguous_offsets().map(|(start, end)| start..end);
    let values = values_mut(storage).zip(range);
    let values = values.and_then(|(values, range)| values.get_mut(range));
    values.ok_or_else(out_of_bounds)
}
