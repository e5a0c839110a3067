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
    /// Whether f32 buckets travel as bf16.
    narrows: bool,
}

/// The gradient buffers of all parameters, one after the other, and the sum of the losses.
#[derive(Debug)]
pub(super) struct Flat {
    buckets: Vec<Bucket>,
    loss: Option<Tensor>,
}

/// Memory that is exchanged in one call.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) values: Tensor,
    /// What travels in place of the values.
    pub(super) narrow: Option<Tensor>,
}

impl Layout {
    /// Full buckets have about `bucket` elements.
    pub(super) fn new(ranks: usize, bucket: usize, narrows: bool) -> Self {
        let unit = ranks * ALIGNMENT;
        let bucket = (bucket / unit).max(1) * unit;
        Self {
            ranks,
            bucket,
            narrows,
        }
    }

    /// The number of elements with padding.
    fn padded(&self, used: usize) -> usize {
        used.next_multiple_of(self.ranks * ALIGNMENT)
    }

    fn buckets(&self, len: usize) -> impl Iterator<Item = Range<usize>> {
        let bucket = self.bucket;
        (0..len)
            .step_by(bucket)
            .map(move |start| start..len.min(start.saturating_add(bucket)))
    }
}

impl Flat {
    /// Allocates the memory, and makes it the slots' buffers.
    pub(super) fn new(layout: Layout, slots: &mut [Slot]) -> Result<Self> {
        slots.iter_mut().for_each(|slot| slot.buffer = None);
        let mut flat = Self {
            buckets: Vec::new(),
            loss: None,
        };
        for dtype in [DType::F32, DType::F64] {
            let slots = slots.iter_mut().filter(|slot| slot.buffer_type() == dtype);
            let mut slots: Vec<_> = slots.collect();
            let Some(device) = slots
                .first()
                .map(|slot| slot.parameter.var.device().clone())
            else {
                continue;
            };
            let lens = slots.iter().map(|slot| slot.parameter.var.elem_count());
            let used: usize = lens.map(|len| len.next_multiple_of(ALIGNMENT)).sum();
            let narrows = layout.narrows && dtype == DType::F32;
            // The sum of the losses travels behind the gradients, unless they are narrowed.
            let has_loss = flat.loss.is_none() && !narrows;
            let buffer =
                Tensor::zeros(layout.padded(used + usize::from(has_loss)), dtype, &device)?;
            flat.cut(layout, &buffer, narrows)?;
            if has_loss {
                flat.loss = Some(buffer.narrow(0, used, 1)?);
            } else if flat.loss.is_none() {
                let alone = Tensor::zeros(layout.padded(1), dtype, &device)?;
                flat.cut(layout, &alone, false)?;
                flat.loss = Some(alone.narrow(0, 0, 1)?);
            }
            let mut start = 0;
            for slot in &mut slots {
                let (len, shape) = (slot.parameter.var.elem_count(), slot.parameter.var.shape());
                slot.buffer = Some(buffer.narrow(0, start, len)?.reshape(shape)?);
                start += len.next_multiple_of(ALIGNMENT);
            }
        }
        Ok(flat)
    }

    /// Adds a buffer's buckets. Those that are narrowed share one buffer, because they travel one after the other.
    fn cut(&mut self, layout: Layout, buffer: &Tensor, narrows: bool) -> Result<()> {
        let len = buffer.elem_count();
        let narrow =
            narrows.then(|| Tensor::zeros(len.min(layout.bucket), DType::BF16, buffer.device()));
        let narrow = narrow.transpose()?;
        for range in layout.buckets(len) {
            let narrow = narrow.as_ref().map(|all| all.narrow(0, 0, range.len()));
            self.buckets.push(Bucket {
                values: buffer.narrow(0, range.start, range.len())?,
                narrow: narrow.transpose()?,
            });
        }
        Ok(())
    }

    pub(super) fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Writes the sum of a rank's losses.
    pub(super) fn set_loss(&self, known: f64, pending: &[(Tensor, f64)]) -> Result<()> {
        let Some(loss) = &self.loss else {
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
        let mut loss = self.loss.iter();
        Ok(loss.try_for_each(|loss| blend(loss, 1. / by, 0., None))?)
    }

    /// The place of the losses' sum.
    pub(super) fn loss(&self) -> Option<&Tensor> {
        self.loss.as_ref()
    }
}

impl Bucket {
    /// Has `exchange` change the values, or what travels in their place. `narrow` is written without an allocation.
    pub(super) fn travel(&self, exchange: impl FnOnce(&Tensor) -> Result<()>) -> Result<()> {
        let Some(narrow) = &self.narrow else {
            return exchange(&self.values);
        };
        blend(narrow, 0., 1., Some(&self.values))?;
        exchange(narrow)?;
        Ok(blend(&self.values, 0., 1., Some(narrow))?)
    }
}
