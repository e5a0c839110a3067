//! Buffers as ranks exchange them: filled before the sum, and copied back after it.

use candle_core::{DType, Tensor, Var};

use super::flat::{Flat, Layout, Slot};
use super::slots::Slots;
use crate::error::Result;
use crate::optim::{Shard, blend};

/// Gradients that ranks exchange.
impl Slots {
    /// Lays the buffers out for an exchange between ranks.
    pub(super) fn lay_out(&mut self, layout: Layout) -> Result<()> {
        self.layout = Some(layout);
        self.place()
    }

    /// Makes memory that all ranks exchange the slots' buffers.
    pub(super) fn place(&mut self) -> Result<()> {
        let Some(layout) = self.layout else {
            return Ok(());
        };
        // Sharded state has no other memory: `follow` refuses what has no place in it.
        if let Some(flat) = &self.flat
            && flat.attach(&mut self.slots)
        {
            return Ok(());
        }
        // The old memory goes first.
        self.slots.iter_mut().for_each(|slot| slot.buffer = None);
        self.flat = None;
        let flat = Flat::new(layout, &self.slots)?;
        flat.attach(&mut self.slots);
        self.flat = Some(flat);
        self.fingerprint = self.checksum();
        Ok(())
    }

    /// The elements that this rank sums; all without other ranks.
    pub(super) fn shard(&self, rank: usize) -> Shard {
        let parameters: Vec<_> = self
            .slots
            .iter()
            .map(|slot| slot.parameter.clone())
            .collect();
        let mut shard = Shard::of(&parameters);
        match (&self.flat, self.layout) {
            (Some(flat), Some(layout)) => flat.share(layout, rank, &self.slots, &mut shard),
            _ => self
                .vars()
                .for_each(|var| shard.own(var, 0..var.elem_count())),
        }
        shard
    }

    /// A checksum of the first gradients that are still awaited.
    pub(super) fn awaited_fingerprint(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        if self.is_awaiting {
            let awaited = self.slots.iter().map(|slot| slot.awaited as u64);
            awaited.for_each(|awaited| hasher.update(&awaited.to_le_bytes()));
        }
        hasher.finalize()
    }

    pub(super) fn checksum(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for Slot { parameter, .. } in &self.slots {
            let (dims, dtype) = (parameter.var.dims(), parameter.var.dtype());
            hasher.update(format!("{} {dims:?} {dtype:?}\n", parameter.name).as_bytes());
        }
        for bucket in self.flat.iter().flat_map(Flat::buckets) {
            hasher.update(&bucket.elem_count().to_le_bytes());
        }
        hasher.finalize()
    }

    /// Prepares the buffers for the sum over all ranks: slots that only other ranks have filled become 0, and statistics are copied.
    pub(super) fn complete(&mut self, is_filled: impl Fn(usize) -> bool) -> Result<()> {
        let filled = self.slots.iter_mut().enumerate();
        for (_, slot) in filled.filter(|(at, _)| is_filled(*at)) {
            let Some(buffer) = &slot.buffer else {
                continue;
            };
            if !slot.is_filled {
                buffer.zero_set()?;
            }
            (slot.is_filled, slot.is_reached) = (true, true);
        }
        for (slot, buffer) in self.statistics() {
            blend(
                buffer,
                0.,
                1.,
                Some(&slot.parameter.var.as_detached_tensor()),
            )?;
        }
        Ok(())
    }

    /// Makes the sums of the ranks' statistics, such as BatchNorm's running mean, this rank's.
    pub(super) fn take_statistics(&self) -> Result<()> {
        self.statistics().try_for_each(take)
    }

    /// Copies what this rank has updated, and the rest, into the buffers of the gradients.
    pub(super) fn put_parameters(&self) -> Result<()> {
        for (Slot { parameter, .. }, buffer) in self.learning() {
            blend(buffer, 0., 1., Some(&parameter.var.as_detached_tensor()))?;
        }
        Ok(())
    }

    /// Copies the parameters back.
    pub(super) fn take_parameters(&self) -> Result<()> {
        self.learning().try_for_each(take)
    }

    /// Those that an update changes, with their buffers.
    fn learning(&self) -> impl Iterator<Item = (&Slot, &Tensor)> {
        let slots = self.slots.iter();
        let slots = slots.filter(|slot| !self.reach.is_buffer(&slot.parameter));
        slots.filter_map(|slot| Some((slot, slot.buffer.as_ref()?)))
    }

    /// Those that the forward pass changes by itself, with their buffers.
    fn statistics(&self) -> impl Iterator<Item = (&Slot, &Tensor)> {
        let slots = self.slots.iter().filter(|slot| !slot.is_filled);
        let statistics = slots.filter(|slot| self.reach.is_buffer(&slot.parameter));
        statistics.filter_map(|slot| Some((slot, slot.buffer.as_ref()?)))
    }

    /// What only an update changes.
    pub(super) fn updated(&self) -> impl Iterator<Item = &Var> {
        let slots = self.slots.iter();
        let slots = slots.filter(|slot| !self.reach.is_buffer(&slot.parameter));
        slots.map(|slot| &slot.parameter.var)
    }
}

/// Copies a buffer into its parameter, on the CPU and on CUDA without an allocation, because some of an update may have been applied.
fn take((Slot { parameter, .. }, buffer): (&Slot, &Tensor)) -> Result<()> {
    let var = &parameter.var;
    match var.dtype() {
        DType::BF16 | DType::F16 if !var.device().is_metal() => blend(var, 0., 1., Some(buffer))?,
        dtype => var.set(&buffer.to_dtype(dtype)?)?,
    }
    Ok(())
}

/// The elements that this rank sums.
#[derive(Debug)]
pub(super) struct OwnShard {
    pub(super) elements: Shard,
    /// The fingerprint of the parameters.
    pub(super) of: u32,
}

impl OwnShard {
    pub(super) fn new(slots: &Slots, rank: usize) -> Self {
        Self {
            elements: slots.shard(rank),
            of: slots.fingerprint,
        }
    }
}
