//! The memory of gradients. With other ranks all lie one after the other, in buckets that are exchanged in one call each, and of which each
//! rank has a piece; without, each parameter has its own.

use std::collections::HashMap;
use std::ops::Range;

use candle_core::{DType, Device, Tensor, TensorId};

use super::loss::StepLoss;
use crate::error::Result;
use crate::optim::{Parameter, Shard, blend};

/// Parameters begin at multiples of this many elements, so that what one rank owns of a parameter begins and ends at them too.
const ALIGNMENT: usize = Shard::ALIGNMENT;

/// How memory is cut for an exchange: into buckets, and these into one piece for each rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    ranks: usize,
    /// Elements of a full bucket.
    bucket: usize,
}

/// The gradient buffers of all parameters, one after the other, and the mean of the losses.
#[derive(Debug, Default)]
pub(super) struct Flat {
    /// Each is exchanged in one call.
    pub(super) buckets: Vec<Tensor>,
    /// The place of the losses' mean.
    pub(super) loss: Option<Tensor>,
    places: HashMap<TensorId, Place>,
}

/// Where a parameter's gradient lies.
#[derive(Debug)]
struct Place {
    buffer: Tensor,
    /// Its first element, among the `len` elements that are cut together.
    start: usize,
    len: usize,
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

    /// The elements of `len` that this rank sums.
    fn owned(&self, rank: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
        let ranks = self.ranks;
        self.buckets(len).map(move |bucket| {
            let piece = bucket.len() / ranks;
            let start = bucket.start + rank * piece;
            start..start + piece
        })
    }

    fn buckets(&self, len: usize) -> impl Iterator<Item = Range<usize>> {
        let bucket = self.bucket;
        (0..len)
            .step_by(bucket)
            .map(move |start| start..len.min(start.saturating_add(bucket)))
    }
}

impl Flat {
    /// Allocates the memory for these slots.
    pub(super) fn new(layout: Layout, slots: &[Slot]) -> Result<Self> {
        let mut flat = Self::default();
        for dtype in [DType::F32, DType::F64] {
            let slots = slots.iter().filter(|slot| slot.buffer_type() == dtype);
            let slots: Vec<_> = slots.collect();
            let Some(first) = slots.first() else {
                continue;
            };
            let lens = slots.iter().map(|slot| slot.parameter.var.elem_count());
            let used: usize = lens.map(|len| len.next_multiple_of(ALIGNMENT)).sum();
            // The mean of the losses travels behind the gradients.
            let has_loss = flat.loss.is_none();
            let len = layout.padded(used + usize::from(has_loss));
            let buffer = Tensor::zeros(len, dtype, first.parameter.var.device())?;
            for range in layout.buckets(len) {
                let bucket = buffer.narrow(0, range.start, range.len())?;
                flat.buckets.push(bucket);
            }
            if has_loss {
                flat.loss = Some(buffer.narrow(0, used, 1)?);
            }
            let mut start = 0;
            for slot in slots {
                let var = &slot.parameter.var;
                let len = var.elem_count();
                let place = Place {
                    buffer: buffer.narrow(0, start, len)?.reshape(var.shape())?,
                    start,
                    len: buffer.elem_count(),
                };
                flat.places.insert(var.id(), place);
                start += len.next_multiple_of(ALIGNMENT);
            }
        }
        Ok(flat)
    }

    /// Makes the memory the slots' buffers, if all have a place in it.
    pub(super) fn attach(&self, slots: &mut [Slot]) -> bool {
        if self.missing(slots).is_some() {
            return false;
        }
        for slot in slots {
            let place = self.places.get(&slot.parameter.var.id());
            slot.buffer = place.map(|place| place.buffer.clone());
        }
        true
    }

    /// The first slot that has no place in the memory.
    pub(super) fn missing<'a>(&self, slots: &'a [Slot]) -> Option<&'a Slot> {
        let mut slots = slots.iter();
        slots.find(|slot| !self.places.contains_key(&slot.parameter.var.id()))
    }

    /// Adds the elements of these slots that a rank sums to its shard.
    pub(super) fn share(&self, layout: Layout, rank: usize, slots: &[Slot], shard: &mut Shard) {
        for Slot { parameter, .. } in slots {
            let Some(place) = self.places.get(&parameter.var.id()) else {
                continue;
            };
            let end = place.start + parameter.var.elem_count();
            for owned in layout.owned(rank, place.len) {
                let range = owned.start.max(place.start)..owned.end.min(end);
                if range.start < range.end {
                    shard.own(
                        &parameter.var,
                        range.start - place.start..range.end - place.start,
                    );
                }
            }
        }
    }

    /// Writes the mean of a rank's losses: their sum over their weight, or 0 if there are none.
    pub(super) fn set_loss(&self, losses: &StepLoss) -> Result<()> {
        let Some(loss) = &self.loss else {
            return Ok(());
        };
        let (dtype, weight) = (loss.dtype(), losses.weight());
        let part = if weight > 0. { weight.recip() } else { 0. };
        let known = Tensor::new(losses.sum * part, &Device::Cpu)?.to_dtype(dtype)?;
        let known = known.to_device(loss.device())?.reshape(1)?;
        blend(loss, 0., 1., Some(&known))?;
        for (value, factor) in &losses.pending {
            let value = value.flatten_all()?.narrow(0, 0, 1)?;
            blend(loss, 1., factor * part, Some(&value.to_dtype(dtype)?))?;
        }
        Ok(())
    }
}

/// A parameter and the weighted mean of its gradients.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) parameter: Parameter,
    /// Allocated when the parameter first receives a gradient, or with those of all others; f32 for f16 and bf16 parameters.
    pub(super) buffer: Option<Tensor>,
    /// Whether it has ever received a gradient.
    pub(super) is_reached: bool,
    /// Whether the buffer holds a gradient of the current window.
    pub(super) is_filled: bool,
    /// Number of updates, the next one included, in which the first gradient may arrive; 0 if it has, or need not.
    pub(super) awaited: usize,
}

impl Slot {
    /// The type in which gradients are accumulated.
    pub(super) fn buffer_type(&self) -> DType {
        match self.parameter.var.dtype() {
            DType::F16 | DType::BF16 => DType::F32,
            dtype => dtype,
        }
    }
}
