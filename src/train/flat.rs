use std::collections::HashMap;
use std::ops::Range;

use candle_core::{DType, Device, Tensor, TensorId};

use super::slot::Slot;
use crate::error::Result;
use crate::optim::{Shard, blend};

/// Parameters begin at multiples of this many elements, so that what one rank owns of a parameter begins and ends at them too.
const ALIGNMENT: usize = Shard::ALIGNMENT;

/// How memory is cut for an exchange: into buckets, and these into one piece for each rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    ranks: usize,
    /// Elements of a full bucket.
    bucket: usize,
    /// Whether f32 buckets travel as bf16.
    narrows: bool,
}

/// The gradient buffers of all parameters, one after the other, and the mean of the losses.
#[derive(Debug)]
pub(super) struct Flat {
    buckets: Vec<Bucket>,
    loss: Option<Tensor>,
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
    /// Allocates the memory for these slots. Those that are `exact` are not narrowed.
    pub(super) fn new(
        layout: Layout,
        slots: &[Slot],
        exact: impl Fn(&Slot) -> bool,
    ) -> Result<Self> {
        let mut flat = Self {
            buckets: Vec::new(),
            loss: None,
            places: HashMap::new(),
        };
        let narrows = |slot: &Slot| layout.narrows && !exact(slot);
        for (dtype, narrowed) in [(DType::F32, true), (DType::F32, false), (DType::F64, false)] {
            let slots = slots.iter().filter(|slot| slot.buffer_type() == dtype);
            let slots: Vec<_> = slots
                .filter(|slot| dtype == DType::F64 || narrows(slot) == narrowed)
                .collect();
            let Some(device) = slots
                .first()
                .map(|slot| slot.parameter.var.device().clone())
            else {
                continue;
            };
            let lens = slots.iter().map(|slot| slot.parameter.var.elem_count());
            let used: usize = lens.map(|len| len.next_multiple_of(ALIGNMENT)).sum();
            // The mean of the losses travels behind the gradients, unless they are narrowed.
            let has_loss = flat.loss.is_none() && !narrowed;
            let buffer =
                Tensor::zeros(layout.padded(used + usize::from(has_loss)), dtype, &device)?;
            flat.cut(layout, &buffer, narrowed)?;
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
        if let (None, Some(slot)) = (&flat.loss, slots.first()) {
            let device = slot.parameter.var.device();
            let alone = Tensor::zeros(layout.padded(1), DType::F32, device)?;
            flat.cut(layout, &alone, false)?;
            flat.loss = Some(alone.narrow(0, 0, 1)?);
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

    /// Writes the mean of a rank's losses: their sum over their weight, or 0 if there are none.
    pub(super) fn set_loss(
        &self,
        known: f64,
        pending: &[(Tensor, f64)],
        weight: f64,
    ) -> Result<()> {
        let Some(loss) = &self.loss else {
            return Ok(());
        };
        let dtype = loss.dtype();
        let part = if weight > 0. { weight.recip() } else { 0. };
        let known = Tensor::new(known * part, &Device::Cpu)?.to_dtype(dtype)?;
        blend(
            loss,
            0.,
            1.,
            Some(&known.to_device(loss.device())?.reshape(1)?),
        )?;
        for (value, factor) in pending {
            let value = value.flatten_all()?.narrow(0, 0, 1)?;
            blend(loss, 1., factor * part, Some(&value.to_dtype(dtype)?))?;
        }
        Ok(())
    }

    /// The place of the losses' mean.
    pub(super) fn loss(&self) -> Option<&Tensor> {
        self.loss.as_ref()
    }
}

impl Bucket {
    /// Has `exchange` sum the values, or what travels in their place, of all ranks, each multiplied by its rank's factor.
    /// `narrow` is written without an allocation.
    pub(super) fn travel(
        &self,
        factor: f64,
        exchange: impl FnOnce(&Tensor, f64) -> Result<()>,
    ) -> Result<()> {
        let Some(narrow) = &self.narrow else {
            return exchange(&self.values, factor);
        };
        blend(&self.values, factor, 0., None)?;
        blend(narrow, 0., 1., Some(&self.values))?;
        exchange(narrow, 1.)?;
        Ok(blend(&self.values, 0., 1., Some(narrow))?)
    }
}
