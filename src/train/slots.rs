use std::collections::{HashMap, HashSet};

use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, TensorId, Var};

use crate::batch::run_phase;
use crate::error::{LossError, ParameterError, Phase, Result};
use crate::optim::{Parameter, blend};

/// The parameters that are trained, each with the weighted mean of its gradients.
#[derive(Debug, Default)]
pub(super) struct Slots(Vec<Slot>);

#[derive(Debug)]
struct Slot {
    parameter: Parameter,
    /// Allocated when the parameter first receives a gradient; f32 for f16 and bf16 parameters.
    buffer: Option<Var>,
    /// Whether the buffer holds a gradient of the current window.
    is_filled: bool,
}

/// The type of the gradients for the optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precision {
    /// The parameters' types.
    Parameters,
    /// The buffers' types.
    Buffers,
}

impl Slots {
    /// Follows the list of parameters, which changes when a group is frozen or thawed; buffers are kept. Integer Vars are
    /// ignored, as candle's optimizers do.
    pub(super) fn follow(&mut self, parameters: &[Parameter]) -> Result<()> {
        let trainable = || parameters.iter().filter(|p| !p.var.dtype().is_int());
        let is_same =
            |(slot, parameter): (&Slot, &Parameter)| slot.parameter.var.id() == parameter.var.id();
        if !self.0.is_empty()
            && self.0.len() == trainable().count()
            && self.0.iter().zip(trainable()).all(is_same)
        {
            return Ok(());
        }
        let mut seen = HashSet::new();
        for parameter in trainable() {
            let dtype = parameter.var.dtype();
            if !seen.insert(parameter.var.id()) {
                let parameter = parameter.name.clone();
                return Err(ParameterError::Duplicate { parameter }.into());
            }
            if !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
                let parameter = parameter.name.clone();
                return Err(ParameterError::DType { parameter, dtype }.into());
            }
        }
        if seen.is_empty() {
            return Err(ParameterError::None.into());
        }
        let old = std::mem::take(&mut self.0).into_iter();
        let mut buffers: HashMap<TensorId, Option<Var>> = old
            .map(|slot| (slot.parameter.var.id(), slot.buffer))
            .collect();
        let slots = trainable().map(|parameter| Slot {
            buffer: buffers.remove(&parameter.var.id()).flatten(),
            parameter: parameter.clone(),
            is_filled: false,
        });
        self.0 = slots.collect();
        Ok(())
    }

    /// Runs the backward pass and returns one gradient for each slot. The graph and all other gradients are dropped.
    pub(super) fn differentiate(&self, loss: &Tensor) -> Result<Vec<Option<Tensor>>> {
        let mut store = loss.backward()?;
        // A gradient may refer to the graph that it was computed from and keep the activations alive: detach it.
        let gradients = self.0.iter().map(|slot| store.remove(&slot.parameter.var));
        Ok(gradients.map(|gradient| Some(gradient?.detach())).collect())
    }

    /// Returns no gradient for each slot.
    pub(super) fn no_gradients(&self) -> Vec<Option<Tensor>> {
        self.0.iter().map(|_| None).collect()
    }

    /// Checks the gradients' shapes and allocates missing buffers: all that can run out of memory.
    pub(super) fn prepare(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        for (slot, gradient) in self.0.iter_mut().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            let var = &slot.parameter.var;
            if gradient.shape() != var.shape() {
                return Err(ParameterError::Gradient {
                    parameter: slot.parameter.name.clone(),
                    expected: var.shape().clone(),
                    found: gradient.shape().clone(),
                }
                .into());
            }
            if slot.buffer.is_none() {
                let dtype = match var.dtype() {
                    DType::F16 | DType::BF16 => DType::F32,
                    dtype => dtype,
                };
                slot.buffer = Some(Var::zeros(var.shape(), dtype, var.device())?);
            }
        }
        Ok(())
    }

    /// Computes `keep · mean + add · gradient` in place for the slot at `index`.
    pub(super) fn blend(
        &mut self,
        index: usize,
        (keep, add): (f64, f64),
        gradient: Option<Tensor>,
    ) -> Result<()> {
        run_phase(Phase::Accumulate, || {
            let Some(slot) = self.0.get_mut(index) else {
                return Ok(());
            };
            let Some(buffer) = &slot.buffer else {
                return Ok(());
            };
            match (&gradient, slot.is_filled) {
                (Some(gradient), true) => blend(buffer, keep, add, Some(gradient))?,
                (Some(gradient), false) => blend(buffer, 0., add, Some(gradient))?,
                (None, true) => blend(buffer, keep, 0., None)?,
                (None, false) => {}
            }
            slot.is_filled |= gradient.is_some();
            Ok::<_, candle_core::Error>(())
        })
    }

    /// Returns the mean gradients. They share the buffers' memory unless they are converted.
    pub(super) fn gradients(&self, precision: Precision) -> Result<GradStore> {
        let mut store = GradStore::default();
        for slot in self.0.iter().filter(|slot| slot.is_filled) {
            let (Some(buffer), var) = (&slot.buffer, &slot.parameter.var) else {
                continue;
            };
            let gradient = buffer.as_detached_tensor();
            let gradient = match precision {
                Precision::Parameters => gradient.to_dtype(var.dtype())?,
                Precision::Buffers => gradient,
            };
            store.insert(var, gradient);
        }
        if store.get_ids().next().is_none() {
            return Err(LossError::Disconnected.into());
        }
        Ok(store)
    }

    pub(super) fn reset(&mut self) {
        for slot in &mut self.0 {
            slot.is_filled = false;
        }
    }

    pub(super) fn unreached(&self) -> Vec<Parameter> {
        let unreached = self.0.iter().filter(|slot| slot.buffer.is_none());
        unreached.map(|slot| slot.parameter.clone()).collect()
    }

    /// Returns the bytes of the parameters, and of their buffers.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let bytes = |var: &Var| (var.elem_count() * var.dtype().size_in_bytes()) as u64;
        let parameters = self.0.iter().map(|slot| bytes(&slot.parameter.var));
        let buffers = self.0.iter().filter_map(|slot| slot.buffer.as_ref());
        (parameters.sum(), buffers.map(bytes).sum())
    }

    pub(super) fn first(&self) -> Option<&Var> {
        self.0.first().map(|slot| &slot.parameter.var)
    }
}
