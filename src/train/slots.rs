use std::collections::{HashMap, HashSet};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, Var};

use super::loss::Weighted;
use crate::batch::run_phase;
use crate::error::{Error, LossError, OptimizerError, ParameterError, Phase, Result};
use crate::optim::{Parameter, blend};

/// The parameters that are trained, each with the weighted mean of its gradients.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<Slot>);

/// The gradients of a micro-batch, one for each slot; none for a loss of weight 0.
pub(super) type Gradients = Vec<Option<Tensor>>;
/// What a micro-batch adds.
pub(super) type Contribution = (Weighted, Gradients);

#[derive(Debug)]
struct Slot {
    parameter: Parameter,
    /// Allocated when the parameter first receives a gradient; f32 for f16 and bf16 parameters.
    buffer: Option<Var>,
    /// Whether the buffer holds a gradient of the current window.
    is_filled: bool,
}

impl Slot {
    /// Checks a gradient's shape and allocates a missing buffer: all that can run out of memory.
    fn prepare(&mut self, gradient: &Tensor) -> Result<()> {
        let var = &self.parameter.var;
        if gradient.shape() != var.shape() {
            return Err(OptimizerError::GradientShape {
                parameter: self.parameter.name.clone(),
                expected: var.shape().clone(),
                found: gradient.shape().clone(),
            }
            .into());
        }
        if self.buffer.is_none() {
            let dtype = match var.dtype() {
                DType::F16 | DType::BF16 => DType::F32,
                dtype => dtype,
            };
            self.buffer = Some(Var::zeros(var.shape(), dtype, var.device())?);
        }
        Ok(())
    }

    /// Computes `keep · mean + add · gradient` in place.
    fn blend(&mut self, keep: f64, add: f64, gradient: Option<Tensor>) -> Result<()> {
        let keep = if self.is_filled { keep } else { 0. };
        if let Some(buffer) = &self.buffer
            && (self.is_filled || gradient.is_some())
        {
            blend(buffer, keep, add, gradient.as_ref())?;
            self.is_filled = true;
        }
        Ok(())
    }
}

impl Slots {
    /// Follows the list of parameters, which changes when a group is frozen or thawed; buffers are kept. Integer Vars are ignored.
    pub(super) fn follow(&mut self, parameters: &[Parameter]) -> Result<()> {
        let trainable = || parameters.iter().filter(|p| !p.var.dtype().is_int());
        let ids = trainable().map(|parameter| parameter.var.id());
        if !self.0.is_empty() && self.vars().map(|var| var.id()).eq(ids) {
            return Ok(());
        }
        let buffers = self.0.iter().map(|slot| slot.buffer.clone());
        let old = self.vars().map(|var| var.id());
        let mut old: HashMap<_, _> = old.zip(buffers).collect();
        let mut seen = HashSet::new();
        let slots = trainable().cloned().map(|parameter| {
            let (id, dtype) = (parameter.var.id(), parameter.var.dtype());
            if !seen.insert(id) {
                return Err(ParameterError::Duplicate(parameter.name).into());
            }
            if !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
                let parameter = parameter.name;
                return Err(ParameterError::DType { parameter, dtype }.into());
            }
            Ok(Slot {
                parameter,
                buffer: old.remove(&id).flatten(),
                is_filled: false,
            })
        });
        let slots = slots.collect::<Result<Vec<_>>>()?;
        if slots.is_empty() {
            return Err(ParameterError::None.into());
        }
        self.0 = slots;
        Ok(())
    }

    /// Runs the backward pass. The graph and all gradients of others are dropped.
    pub(super) fn differentiate(&self, loss: &Tensor) -> Result<Gradients> {
        let mut store = loss.backward()?;
        // A gradient may refer to the graph that it was computed from and keep the activations alive: detach it.
        let gradients = self.0.iter().map(|slot| store.remove(&slot.parameter.var));
        Ok(gradients.map(|gradient| Some(gradient?.detach())).collect())
    }

    /// Does all that can run out of memory before these gradients are added.
    pub(super) fn prepare(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        let mut pairs = self.0.iter_mut().zip(gradients);
        pairs.try_for_each(|(slot, gradient)| gradient.iter().try_for_each(|g| slot.prepare(g)))
    }

    /// Computes `keep · mean + add · gradient` in place. An error comes with whether a mean has changed already.
    pub(super) fn blend(
        &mut self,
        keep: f64,
        add: f64,
        gradients: Gradients,
    ) -> Result<(), (bool, Error)> {
        for (index, (slot, gradient)) in self.0.iter_mut().zip(gradients).enumerate() {
            run_phase(Phase::Accumulate, || slot.blend(keep, add, gradient))
                .map_err(|error| (index > 0, error))?;
        }
        Ok(())
    }

    /// Returns the mean gradients, in the buffers' types or in the parameters'. They share the buffers' memory unless they are
    /// converted.
    pub(super) fn gradients(&self, in_buffer_types: bool) -> Result<GradStore> {
        let mut store = GradStore::default();
        for slot in self.0.iter().filter(|slot| slot.is_filled) {
            let (Some(buffer), var) = (&slot.buffer, &slot.parameter.var) else {
                continue;
            };
            let gradient = buffer.as_detached_tensor();
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
        self.0.iter_mut().for_each(|slot| slot.is_filled = false);
    }

    pub(super) fn unreached(&self) -> Vec<Parameter> {
        let unreached = self.0.iter().filter(|slot| slot.buffer.is_none());
        unreached.map(|slot| slot.parameter.clone()).collect()
    }

    pub(super) fn warn_of_unreached(&self) {
        for parameter in self.unreached() {
            tracing::warn!(
                parameter = parameter.name,
                shape = ?parameter.var.shape(),
                "a parameter received no gradient in the first update: it is unused, or an operation without a backward pass cuts it off"
            );
        }
    }

    /// Returns the bytes of the parameters, and of their buffers.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let bytes = |var: &Var| (var.elem_count() * var.dtype().size_in_bytes()) as u64;
        let buffers = self.0.iter().filter_map(|slot| slot.buffer.as_ref());
        (self.vars().map(bytes).sum(), buffers.map(bytes).sum())
    }

    pub(super) fn vars(&self) -> impl Iterator<Item = &Var> {
        self.0.iter().map(|slot| &slot.parameter.var)
    }
}
