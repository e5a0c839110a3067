use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::slot::Slot;
use crate::error::Result;
use crate::optim::blend;

/// Parameters begin at multiples of this many elements, so that what one rank owns of a parameter begins and ends at them too.
pub(super) const ALIGNMENT: usize = 256;

/// How memory is cut for an exchange: into buckets, and these into one piece for each rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    ranks: usize,
    /// Elements of a full bucket.
    bucket: usize,
}

/// The gradient buffers of all parameters, one after the other, with the sum of the losses behind them.
#[derive(Debug)]
pub(super) struct Flat {
    /// One for each type.
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    buffer: Tensor,
    buckets: Vec<Tensor>,
    /// The last element that is used, for the sum of the losses.
    loss: Tensor,
}

impl Layout {
    /// Full buckets have about `bucket` elements.
    pub(super) fn new(ranks: usize, bucket: usize) -> Self {
        let unit = ranks * ALIGNMENT;
        let bucket = (bucket / unit).max(1) * unit;
        Self { ranks, bucket }
    }

    /// The number of elements with padding.
    fn padded(&self, used: usize) -> usize {
        used.next_multiple_of(self.ranks * ALIGNMENT)
    }

    fn buckets(&self, len: usize) -> impl Iterator<Item = Range<usize>> {
        let bucket = self.bucket;
        (0..len)
            .step_by(bucket)
            .map(move |start| start..len.min(start + bucket))
    }
}

impl Flat {
    /// Allocates the memory, and makes it the slots' buffers.
    pub(super) fn new(layout: Layout, slots: &mut [Slot]) -> Result<Self> {
        slots.iter_mut().for_each(|slot| slot.buffer = None);
        let mut parts = Vec::new();
        for dtype in [DType::F32, DType::F64] {
            let mut slots: Vec<_> = slots
                .iter_mut()
                .filter(|slot| slot.buffer_type() == dtype)
                .collect();
            let Some(device) = slots
                .first()
                .map(|slot| slot.parameter.var.device().clone())
            else {
                continue;
            };
            let lens = slots.iter().map(|slot| slot.parameter.var.elem_count());
            let used: usize = lens.map(|len| len.next_multiple_of(ALIGNMENT)).sum();
            let part = Part::new(layout, used, dtype, &device)?;
            let mut start = 0;
            for slot in &mut slots {
                let (len, shape) = (slot.parameter.var.elem_count(), slot.parameter.var.shape());
                slot.buffer = Some(part.buffer.narrow(0, start, len)?.reshape(shape)?);
                start += len.next_multiple_of(ALIGNMENT);
            }
            parts.push(part);
        }
        Ok(Self { parts })
    }

    /// The pieces of memory that are exchanged in one call each.
    pub(super) fn buckets(&self) -> impl Iterator<Item = &Tensor> {
        self.parts.iter().flat_map(|part| &part.buckets)
    }

    /// Writes the sum of a rank's losses.
    pub(super) fn set_loss(&self, known: f64, pending: &[(Tensor, f64)]) -> Result<()> {
        let Some(Part { loss, .. }) = self.parts.first() else {
            return Ok(());
        };
        let dtype = loss.dtype();
        let known = Tensor::new(known, &Device::Cpu)?.to_dtype(dtype)?;
        blend(
            loss,
            0.,
            1.,
            Some(&known.to_device(loss.device())?.reshape(1)?),
        )?;
        for (value, factor) in pending {
            let value = value.flatten_all()?.narrow(0, 0, 1)?;
            blend(loss, 1., *factor, Some(&value.to_dtype(dtype)?))?;
        }
        Ok(())
    }

    /// Divides the sum of the losses.
    pub(super) fn scale_loss(&self, by: f64) -> Result<()> {
        let mut loss = self.loss().into_iter();
        Ok(loss.try_for_each(|loss| blend(loss, 1. / by, 0., None))?)
    }

    /// The place of the losses' sum.
    pub(super) fn loss(&self) -> Option<&Tensor> {
        self.parts.first().map(|part| &part.loss)
    }
}

impl Part {
    fn new(layout: Layout, used: usize, dtype: DType, device: &Device) -> Result<Self> {
        let len = layout.padded(used + 1);
        let buffer = Tensor::zeros(len, dtype, device)?;
        let buckets = layout.buckets(len);
        let buckets = buckets.map(|range| buffer.narrow(0, range.start, range.len()));
        Ok(Self {
            loss: buffer.narrow(0, used, 1)?,
            buckets: buckets.collect::<candle_core::Result<_>>()?,
            buffer,
        })
    }
}
