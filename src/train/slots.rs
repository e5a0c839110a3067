//! The parameters that are trained, and for each the weighted mean of its gradients so far.
//!
//! A buffer is allocated with a parameter's first gradient and kept: f32 for f16 and bf16 parameters. All buffers that a micro-batch needs are there
//! before the first one changes. Which parameters have to receive a gradient, and by which update, is checked here too.
//! Buffers that ranks exchange are filled before the sum, and copied back after it.

use std::collections::{BTreeMap, HashMap, HashSet};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};

use super::buffers::Reach;
use super::flat::{Flat, Layout, Slot};
use super::loss::Weighted;
use crate::batch::run_phase;
use crate::error::{
    Error, Phase, Result, UnreachedParameters, invalid, listed_twice, nothing_to_train, untrainable,
};
use crate::optim::{Parameter, Shard, blend, check_shape};
use crate::testing;

/// The parameters that are trained, each with the weighted mean of its gradients.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) slots: Vec<Slot>,
    pub(super) reach: Reach,
    /// Whether a slot still awaits its first gradient.
    pub(super) is_awaiting: bool,
    /// How the buffers lie in memory that all ranks exchange.
    pub(super) layout: Option<Layout>,
    pub(super) flat: Option<Flat>,
    /// The layout decides which rank has which state of the optimizer, so it stays.
    pub(super) is_sharded: bool,
    /// Of names, shapes and types.
    pub(super) fingerprint: u32,
}

/// The gradients of a micro-batch, one for each slot; none for a loss of weight 0.
pub(super) type Gradients = Vec<Option<Tensor>>;
/// What a micro-batch adds.
pub(super) type Contribution = (Weighted, Gradients);

impl Slots {
    /// Follows the list of parameters, which changes when a group is frozen or thawed; buffers are kept. Integer Vars are ignored.
    pub(super) fn follow(&mut self, parameters: &[Parameter]) -> Result<()> {
        let trainable = || parameters.iter().filter(|p| !p.var.dtype().is_int());
        let ids = trainable().map(|parameter| parameter.var.id());
        let is_placed = self.layout.is_none() || self.flat.is_some();
        if is_placed && !self.slots.is_empty() && self.vars().map(|var| var.id()).eq(ids) {
            return Ok(());
        }
        let kept = |slot: &Slot| (slot.buffer.clone(), slot.is_reached, slot.awaited);
        let old = self
            .slots
            .iter()
            .map(|slot| (slot.parameter.var.id(), kept(slot)));
        let mut old: HashMap<_, _> = old.collect();
        let mut seen = HashSet::new();
        let slots = trainable().cloned().map(|parameter| {
            let (id, dtype) = (parameter.var.id(), parameter.var.dtype());
            if !seen.insert(id) {
                return Err(listed_twice(&parameter.name));
            }
            if !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
                return Err(untrainable(&parameter.name, dtype));
            }
            let new = || (None, false, self.reach.awaited(&parameter));
            let (buffer, is_reached, awaited) = old.remove(&id).unwrap_or_else(new);
            Ok(Slot {
                parameter,
                buffer,
                is_reached,
                is_filled: false,
                awaited,
            })
        });
        let slots = slots.collect::<Result<Vec<_>>>()?;
        if slots.is_empty() {
            return Err(nothing_to_train());
        }
        if let (true, Some(flat)) = (self.is_sharded, &self.flat)
            && let Some(new) = flat.missing(&slots)
        {
            return Err(invalid!(
                Optimizer,
                "parameter `{}` was thawed, and a sharded optimizer keeps no state for it: thaw before the trainer is built, or save a checkpoint, build a new trainer with the group thawed, and resume",
                new.parameter.name
            ));
        }
        self.slots = slots;
        self.fingerprint = self.checksum();
        self.note_awaiting();
        self.place()
    }

    /// The parameters that await their first gradient, and in how many updates it may arrive.
    pub(super) fn awaited(&self, parameters: &[Parameter]) -> BTreeMap<String, usize> {
        let known = self.slots.iter();
        let known: HashMap<_, _> = known
            .map(|slot| (slot.parameter.var.id(), slot.awaited))
            .collect();
        let trainable = parameters.iter().filter(|p| !p.var.dtype().is_int());
        let awaited = trainable.map(|parameter| {
            let known = known.get(&parameter.var.id()).copied();
            let awaited = known.unwrap_or_else(|| self.reach.awaited(parameter));
            (parameter.name.clone(), awaited)
        });
        awaited.filter(|(_, awaited)| *awaited > 0).collect()
    }

    /// Awaits what the saved run did, as far as this one awaits it at all.
    pub(super) fn resume(&mut self, awaited: &BTreeMap<String, usize>) {
        for slot in &mut self.slots {
            let saved = awaited.get(&slot.parameter.name).copied();
            slot.awaited = saved.unwrap_or(0).min(self.reach.awaited(&slot.parameter));
        }
        self.note_awaiting();
    }

    fn note_awaiting(&mut self) {
        self.is_awaiting = self.slots.iter().any(|slot| slot.awaited > 0);
    }

    /// Does all that can run out of memory before these gradients are added: checks their shapes and allocates missing buffers.
    pub(super) fn prepare(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        for (slot, gradient) in self.slots.iter_mut().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            let dtype = slot.buffer_type();
            let Parameter { name, var } = &slot.parameter;
            check_shape(name, var, gradient)?;
            if slot.buffer.is_none() {
                slot.buffer = Some(Tensor::zeros(var.shape(), dtype, var.device())?);
            }
        }
        Ok(())
    }

    /// Computes `keep · mean + add · gradient` in place. An error comes with whether a mean has changed already.
    pub(super) fn blend(
        &mut self,
        keep: f64,
        add: f64,
        gradients: Gradients,
    ) -> Result<(), (bool, Error)> {
        for (index, (slot, gradient)) in self.slots.iter_mut().zip(gradients).enumerate() {
            run_phase(Phase::Accumulate, None, move || {
                testing::inject(Phase::Accumulate)?;
                let keep = if slot.is_filled { keep } else { 0. };
                if let Some(buffer) = &slot.buffer
                    && (slot.is_filled || gradient.is_some())
                {
                    blend(buffer, keep, add, gradient.as_ref())?;
                    (slot.is_filled, slot.is_reached) = (true, true);
                }
                Ok(())
            })
            .map_err(|error| (index > 0, error))?;
        }
        Ok(())
    }

    /// Returns the mean gradients, in the buffers' types or in the parameters'. They share the buffers' memory unless they are
    /// converted.
    pub(super) fn gradients(&self, in_buffer_types: bool) -> Result<GradStore> {
        let mut store = GradStore::default();
        for slot in self.slots.iter().filter(|slot| slot.is_filled) {
            let (Some(buffer), var) = (&slot.buffer, &slot.parameter.var) else {
                continue;
            };
            let gradient = buffer.clone();
            let gradient = match in_buffer_types {
                true => gradient,
                false => gradient.to_dtype(var.dtype())?,
            };
            store.insert(var, gradient);
        }
        if store.get_ids().next().is_none() {
            return Err(invalid!(
                Loss,
                "no Var received a gradient from the loss: an operation without a backward pass (`softmax_last_dim`, fused norms, `detach`) lies between, or the optimizer was given other Vars than the model uses"
            ));
        }
        Ok(store)
    }

    pub(super) fn reset(&mut self) {
        self.slots
            .iter_mut()
            .for_each(|slot| slot.is_filled = false);
    }

    /// Fails if this window is the last in which a parameter's first gradient could arrive, and neither this rank nor another has one.
    pub(super) fn check_reached(
        &self,
        is_filled: impl Fn(usize, &Slot) -> bool,
    ) -> Result<(), UnreachedParameters> {
        if !self.is_awaiting {
            return Ok(());
        }
        let slots = self.slots.iter().enumerate();
        let trainable = slots.filter(|(_, slot)| !self.reach.is_buffer(&slot.parameter));
        let (unreached, others): (Vec<_>, Vec<_>) =
            trainable.partition(|(at, slot)| slot.awaited == 1 && !is_filled(*at, slot));
        if unreached.is_empty() {
            return Ok(());
        }
        let name = |(_, slot): (usize, &Slot)| slot.parameter.name.clone();
        let (names, others) = (unreached.into_iter(), others.into_iter());
        let unreached = UnreachedParameters::new(names.map(name), others.map(name));
        Err(unreached.within(self.reach.updates))
    }

    /// Counts an update of this window for those that await a gradient.
    pub(super) fn count_update(&mut self) {
        if !self.is_awaiting {
            return;
        }
        for slot in &mut self.slots {
            slot.awaited = match slot.is_filled {
                true => 0,
                false => slot.awaited.saturating_sub(1),
            };
        }
        self.note_awaiting();
    }

    /// Returns the bytes of the parameters, and of their buffers.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let bytes = |tensor: &Tensor| (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64;
        let buffers = self.slots.iter().filter_map(|slot| slot.buffer.as_ref());
        let parameters = self.vars().map(|var| bytes(var)).sum();
        (parameters, buffers.map(bytes).sum())
    }

    pub(super) fn vars(&self) -> impl Iterator<Item = &Var> {
        self.slots.iter().map(|slot| &slot.parameter.var)
    }
}

/// Gradients that ranks exchange.
impl Slots {
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

    /// The elements that this rank sums, all without other ranks, with the fingerprint of the parameters.
    pub(super) fn shard(&self, rank: usize) -> (Shard, u32) {
        let parameters = self.slots.iter().map(|slot| slot.parameter.clone());
        let mut shard = Shard::of(&Vec::from_iter(parameters));
        match (&self.flat, self.layout) {
            (Some(flat), Some(layout)) => flat.share(layout, rank, &self.slots, &mut shard),
            _ => self
                .vars()
                .for_each(|var| shard.own(var, 0..var.elem_count())),
        }
        (shard, self.fingerprint)
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
        for bucket in self.flat.iter().flat_map(|flat| &flat.buckets) {
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
        self.statistics().try_for_each(put)
    }

    /// Those that an update changes, with their buffers.
    pub(super) fn learning(&self) -> impl Iterator<Item = (&Slot, &Tensor)> {
        let slots = self.slots.iter();
        let slots = slots.filter(|slot| !self.reach.is_buffer(&slot.parameter));
        slots.filter_map(|slot| Some((slot, slot.buffer.as_ref()?)))
    }

    /// Those that the forward pass changes by itself, such as BatchNorm's running mean, with their buffers.
    pub(super) fn statistics(&self) -> impl Iterator<Item = (&Slot, &Tensor)> {
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

/// Copies a parameter into its buffer.
pub(super) fn put((Slot { parameter, .. }, buffer): (&Slot, &Tensor)) -> Result<()> {
    let value = parameter.var.as_detached_tensor();
    Ok(blend(buffer, 0., 1., Some(&value))?)
}

/// Copies a buffer into its parameter, on the CPU and on CUDA without an allocation, because some of an update may have been applied.
pub(super) fn take((Slot { parameter, .. }, buffer): (&Slot, &Tensor)) -> Result<()> {
    let var = &parameter.var;
    match var.dtype() {
        DType::BF16 | DType::F16 if !var.device().is_metal() => blend(var, 0., 1., Some(buffer))?,
        dtype => var.set(&buffer.to_dtype(dtype)?)?,
    }
    Ok(())
}
