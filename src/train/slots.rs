//! The parameters that are trained, and for each the weighted mean of its gradients so far.
//!
//! A buffer is allocated with a parameter's first gradient and kept: f32 for f16 and bf16 parameters. All buffers that a micro-batch needs are there
//! before the first one changes. Which parameters have to receive a gradient, and by which update, is checked here too.

use std::collections::{BTreeMap, HashMap, HashSet};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, TensorId, Var};

use super::flat::{Flat, Layout, Slot};
use super::loss::Weighted;
use crate::batch::run_phase;
use crate::error::{
    Error, LossError, Phase, Result, UnreachedParameters, invalid, listed_twice, nothing_to_train,
    untrainable,
};
use crate::names::{Patterns, is_statistic};
use crate::optim::{Commit, Parameter};
use crate::testing;

/// The parameters that are trained, each with the weighted mean of its gradients.
#[derive(Debug)]
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
    pub(super) fn new(reach: Reach) -> Self {
        Self {
            slots: Vec::new(),
            reach,
            is_awaiting: false,
            layout: None,
            flat: None,
            is_sharded: false,
            fingerprint: 0,
        }
    }

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

    /// Runs the backward pass. The graph and all gradients of others are dropped.
    pub(super) fn differentiate(&self, loss: &Tensor) -> Result<Gradients> {
        let mut store = loss.backward()?;
        // A gradient may refer to the graph that it was computed from and keep the activations alive: detach it.
        let gradients = self
            .slots
            .iter()
            .map(|slot| store.remove(&slot.parameter.var));
        Ok(gradients.map(|gradient| Some(gradient?.detach())).collect())
    }

    /// Does all that can run out of memory before these gradients are added.
    pub(super) fn prepare(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        let mut pairs = self.slots.iter_mut().zip(gradients);
        pairs.try_for_each(|(slot, gradient)| gradient.iter().try_for_each(|g| slot.prepare(g)))
    }

    /// Computes `keep · mean + add · gradient` in place. An error comes with whether a mean has changed already.
    pub(super) fn blend(
        &mut self,
        keep: f64,
        add: f64,
        gradients: Gradients,
    ) -> Result<(), (bool, Error)> {
        for (index, (slot, gradient)) in self.slots.iter_mut().zip(gradients).enumerate() {
            run_phase(Phase::Accumulate, None, || {
                testing::inject(Phase::Accumulate)?;
                slot.blend(keep, add, gradient)
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
            return Err(LossError::Disconnected.into());
        }
        Ok(store)
    }

    pub(super) fn reset(&mut self) {
        self.slots
            .iter_mut()
            .for_each(|slot| slot.is_filled = false);
    }

    pub(super) fn unreached(&self) -> Vec<Parameter> {
        let unreached = self.slots.iter().filter(|slot| !slot.is_reached);
        unreached.map(|slot| slot.parameter.clone()).collect()
    }

    /// Fails if this window is the last in which a parameter's first gradient could arrive, and it has none.
    pub(super) fn check_reached(&self) -> Result<(), UnreachedParameters> {
        self.check_reached_if(|at| self.slots.get(at).is_some_and(|slot| slot.is_filled))
    }

    /// The same with the slots that some rank has filled.
    pub(super) fn check_reached_if(
        &self,
        is_filled: impl Fn(usize) -> bool,
    ) -> Result<(), UnreachedParameters> {
        let is_unreached = |(at, slot): &(usize, &Slot)| slot.awaited == 1 && !is_filled(*at);
        let mut slots = self.slots.iter().enumerate();
        if !self.is_awaiting || !slots.any(|slot| is_unreached(&slot)) {
            return Ok(());
        }
        let slots = self.slots.iter().enumerate();
        let trainable = slots.filter(|(_, slot)| !self.reach.is_buffer(&slot.parameter));
        let (unreached, others): (Vec<_>, Vec<_>) = trainable.partition(is_unreached);
        let name = |(_, slot): (usize, &Slot)| slot.parameter.name.clone();
        let (names, others) = (
            unreached.into_iter().map(name),
            others.into_iter().map(name),
        );
        let unreached = UnreachedParameters::new(names, others);
        Err(unreached.within(self.reach.updates()))
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
        (
            self.vars().map(|var| bytes(var)).sum(),
            buffers.map(bytes).sum(),
        )
    }

    pub(super) fn vars(&self) -> impl Iterator<Item = &Var> {
        self.slots.iter().map(|slot| &slot.parameter.var)
    }
}

/// Which parameters have to receive a gradient, and in how many updates.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    updates: usize,
    allowed: Patterns,
    /// Variables that the forward pass changes by itself.
    buffers: Vec<TensorId>,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            updates: 1,
            allowed: Patterns::default(),
            buffers: Vec::new(),
        }
    }
}

impl Reach {
    pub(super) fn within(mut self, updates: usize) -> Self {
        self.updates = updates;
        self
    }

    pub(super) fn allow(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed.add(patterns);
        self
    }

    pub(super) fn with_buffers(mut self, buffers: &[Tensor]) -> Self {
        self.buffers.extend(buffers.iter().map(Tensor::id));
        self
    }

    /// Refuses settings that cannot be meant.
    pub(super) fn check<O: Commit>(&self, optimizer: &O) -> Result<()> {
        if self.updates == 0 {
            return Err(invalid!(
                Parameter,
                "`reach_within` must be at least 1 update, got 0: to check nothing, write `.allow_unreached([\"*\"])`"
            ));
        }
        let frozen = optimizer.frozen();
        let all = optimizer.parameters().iter().chain(&frozen);
        self.allowed
            .check(all.map(|parameter| parameter.name.as_str()))
    }

    /// For the comparison with other ranks.
    pub(super) fn describe(&self) -> String {
        let Self {
            updates, allowed, ..
        } = self;
        format!("gradients arrive within {updates} updates, but those of {allowed:?}")
    }

    /// The number of updates in which a parameter has to receive a gradient.
    pub(super) fn updates(&self) -> usize {
        self.updates
    }

    pub(super) fn is_buffer(&self, Parameter { name, var, .. }: &Parameter) -> bool {
        is_statistic(name) || self.buffers.contains(&var.id())
    }

    /// The variables that the forward pass changes by itself: those that the caller named, and an optimizer's running statistics.
    pub(super) fn buffers<O: Commit>(&self, optimizer: &O, named: &[Tensor]) -> Vec<Tensor> {
        let frozen = optimizer.frozen();
        let all = optimizer.parameters().iter().chain(&frozen);
        let unnamed = all.filter(|p| is_statistic(&p.name) && !self.buffers.contains(&p.var.id()));
        let unnamed = unnamed.map(|parameter| parameter.var.as_tensor().clone());
        named.iter().cloned().chain(unnamed).collect()
    }

    /// The number of updates in which this parameter may still receive its first gradient; 0 if it needs none.
    pub(super) fn awaited(&self, parameter: &Parameter) -> usize {
        match self.is_buffer(parameter) || self.allowed.has(&parameter.name) {
            true => 0,
            false => self.updates,
        }
    }
}
