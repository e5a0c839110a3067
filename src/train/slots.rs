use std::collections::{HashMap, HashSet};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, TensorId, Var};

use crate::error::{LossError, OptimizerError, ParameterError, Result};
use crate::optim::{Parameter, blend};

/// The parameters that are trained, each with the weighted mean of its gradients.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<Slot>);

#[derive(Debug)]
pub(super) struct Slot {
    parameter: Parameter,
    /// Allocated when the parameter first receives a gradient; f32 for f16 and bf16 parameters.
    buffer: Option<Var>,
    /// Whether the buffer holds a gradient of the current window.
    is_filled: bool,
}

impl Slot {
    fn id(&self) -> TensorId {
        self.parameter.var.id()
    }

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
    pub(super) fn blend(&mut self, keep: f64, add: f64, gradient: Option<Tensor>) -> Result<()> {
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
    /// Follows the list of parameters, which changes when a group is frozen or thawed; buffers are kept. Integer Vars are
    /// ignored, as candle's optimizers do.
    pub(super) fn follow(&mut self, parameters: &[Parameter]) -> Result<()> {
        let trainable = || parameters.iter().filter(|p| !p.var.dtype().is_int());
        let ids = trainable().map(|parameter| parameter.var.id());
        if !self.0.is_empty() && self.0.iter().map(Slot::id).eq(ids) {
            return Ok(());
        }
        let mut old: HashMap<TensorId, Option<Var>> =
            (self.0.iter().map(|slot| (slot.id(), slot.buffer.clone()))).collect();
        let mut seen = HashSet::new();
        let slots = trainable().map(|parameter| {
            let (name, dtype) = (&parameter.name, parameter.var.dtype());
            if !seen.insert(parameter.var.id()) {
                let parameter = name.clone();
                return Err(ParameterError::Duplicate(parameter).into());
            }
            if !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
                let parameter = name.clone();
                return Err(ParameterError::DType { parameter, dtype }.into());
            }
            Ok(Slot {
                buffer: old.remove(&parameter.var.id()).flatten(),
                parameter: parameter.clone(),
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

    /// Runs the backward pass and returns one gradient for each slot. The graph and all other gradients are dropped.
    pub(super) fn differentiate(&self, loss: &Tensor) -> Result<Vec<Option<Tensor>>> {
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

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.0.iter_mut()
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
        self.iter_mut().for_each(|slot| slot.is_filled = false);
    }

    pub(super) fn unreached(&self) -> Vec<Parameter> {
        let unreached = self.0.iter().filter(|slot| slot.buffer.is_none());
        unreached.map(|slot| slot.parameter.clone()).collect()
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
