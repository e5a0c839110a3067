use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, TensorId, Var};

use super::loss::{Loss, Weighted};
use super::window::{Slot, Window};
use crate::batch::run_phase;
use crate::error::{Error, LossError, ParameterError, Phase, Result, WindowLost};
use crate::optim::Commit;

/// Accumulates the gradients of several micro-batches into one update, in a loop of your own.
///
/// The gradients lie in buffers that are allocated once, when a Var first receives a gradient, and hold at any time the
/// weighted mean of what was added: an update is right however many micro-batches came before it, also the last, smaller one.
/// After each backward pass the graph, the loss and every gradient that is not of one of its own Vars are dropped before
/// anything is added. For f16 and bf16 Vars the buffers are f32.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::{AdamW, GradientAccumulator};
/// use candle_nn::{linear, loss, Module, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// let model = linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let mut optimizer = AdamW::new_lr(&varmap, 1e-3)?;
/// let mut accumulator = GradientAccumulator::new(varmap.all_vars())?;
///
/// for i in 0..10 {
///     let x = Tensor::randn(0f32, 1., (8, 4), &Device::Cpu)?;
///     let y = Tensor::zeros(8, DType::U32, &Device::Cpu)?;
///     accumulator.add(loss::cross_entropy(&model.forward(&x)?, &y)?, 8)?;
///     if (i + 1) % 4 == 0 {
///         accumulator.flush(&mut optimizer)?; // one update from 32 samples
///     }
/// }
/// let rest = accumulator.flush(&mut optimizer)?.expect("two micro-batches are left");
/// assert_eq!(rest.samples, 16);
/// assert!(accumulator.unreached().is_empty());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct GradientAccumulator {
    slots: Vec<Slot>,
    window: Window,
}

/// In which types gradients are handed over.
enum Precision {
    /// As the Vars are.
    Vars,
    /// As they were added up: f32 for f16 and bf16.
    Sums,
}

/// A micro-batch's gradients, not yet added.
pub(super) struct Contribution {
    loss: Weighted,
    samples: usize,
    /// One for each slot.
    gradients: Vec<Option<Tensor>>,
}

impl GradientAccumulator {
    /// Accumulates for these Vars; all others' gradients are dropped. Integer Vars are passed over, as candle's optimizers do.
    ///
    /// # Errors
    /// [`ParameterError`]: no Var to train, one that stands in the list twice, or a floating-point type other than f64, f32, f16
    /// and bf16.
    pub fn new(vars: Vec<Var>) -> Result<Self> {
        let mut slots: Vec<Slot> = Vec::with_capacity(vars.len());
        let mut seen: std::collections::HashMap<TensorId, usize> = Default::default();
        for (index, var) in vars.into_iter().enumerate() {
            if seen.insert(var.id(), index).is_some() {
                let parameter = index.to_string();
                return Err(ParameterError::Duplicate { parameter }.into());
            }
            match var.dtype() {
                DType::F64 | DType::F32 | DType::F16 | DType::BF16 => slots.push(Slot {
                    index,
                    var,
                    buffer: None,
                    is_filled: false,
                }),
                dtype if dtype.is_float() => {
                    let parameter = index.to_string();
                    return Err(ParameterError::DType { parameter, dtype }.into());
                }
                _ => {}
            }
        }
        if slots.is_empty() {
            return Err(ParameterError::None.into());
        }
        Ok(Self {
            slots,
            window: Window::default(),
        })
    }

    /// Differentiates the loss of `samples` samples and adds its gradients to the window.
    ///
    /// The loss is consumed, and with it the graph and its activations.
    ///
    /// # Errors
    /// [`LossError`] and any error of the backward pass, with the window as it was; [`WindowLost`] where adding failed half-way
    /// and the window had to be emptied.
    pub fn add(&mut self, loss: impl Into<Loss>, samples: usize) -> Result<()> {
        let contribution = self.differentiate(loss.into(), samples, |loss| Ok(loss.clone()))?;
        self.accumulate(contribution)
    }

    /// Applies one update with what was added since the last one, and empties the window. Without anything added, or where
    /// nothing added weighed anything, there is no update and `None` comes back.
    ///
    /// The optimizer is handed gradients that share the buffers' memory, which the next window overwrites: one that keeps a
    /// gradient beyond its `commit`, as momentum may, has to copy it. This crate's and candle's own do.
    ///
    /// # Errors
    /// [`LossError::Disconnected`] where no Var received a gradient, and any error from preparing the gradients or of the optimizer's,
    /// with the window, the parameters and the optimizer as they were: it can be called again.
    /// [`UpdateInterrupted`](crate::UpdateInterrupted) from an optimizer that is not atomic, with the window emptied, so that the same
    /// gradients are never applied twice.
    pub fn flush(&mut self, optimizer: &mut impl Commit) -> Result<Option<Window>> {
        if self.window.loss.weight() == 0. {
            self.reset();
            return Ok(None);
        }
        let gradients = run_phase(Phase::Optimizer, || {
            self.gradients_in(match optimizer.takes_f32() {
                true => Precision::Sums,
                false => Precision::Vars,
            })
        })?;
        match optimizer.commit(&gradients) {
            Ok(()) => Ok(Some(self.reset())),
            Err(error @ (Error::UpdateInterrupted(_) | Error::DeviceFault(_))) => {
                self.reset();
                Err(error)
            }
            Err(error) => Err(error.in_phase(Phase::Optimizer)),
        }
    }

    /// Throws the window away, and returns what it held.
    pub fn reset(&mut self) -> Window {
        for slot in &mut self.slots {
            slot.is_filled = false;
        }
        std::mem::take(&mut self.window)
    }

    /// The samples added since the last update.
    pub fn samples(&self) -> usize {
        self.window.samples
    }

    /// The window's mean gradients, in their Vars' types, as an optimizer takes them. They share the buffers' memory (f16 and
    /// bf16 are converted), so they change with the next [`add`](Self::add).
    ///
    /// # Errors
    /// [`LossError::Disconnected`] where no Var has a gradient, or candle's from converting.
    pub fn gradients(&self) -> Result<GradStore> {
        self.gradients_in(Precision::Vars)
    }

    fn gradients_in(&self, precision: Precision) -> Result<GradStore> {
        let mut store = GradStore::default();
        let filled = self.slots.iter().filter(|slot| slot.is_filled);
        for (var, buffer) in filled.filter_map(|slot| Some((&slot.var, slot.buffer.as_ref()?))) {
            let gradient = buffer.as_detached_tensor();
            let gradient = match precision {
                Precision::Vars => gradient.to_dtype(var.dtype())?,
                Precision::Sums => gradient,
            };
            store.insert(var, gradient);
        }
        if store.get_ids().next().is_none() {
            return Err(LossError::Disconnected.into());
        }
        Ok(store)
    }

    /// The Vars that have never received a gradient so far: not used in the loss, or cut off from it by an operation that has
    /// no backward pass, such as `softmax_last_dim` or a fused layer norm.
    ///
    /// candle leaves such Vars untouched without a word. To name them, compare ids with those in your `VarMap`'s `data()`.
    pub fn unreached(&self) -> Vec<Var> {
        let unreached = self.slots.iter().filter(|slot| slot.buffer.is_none());
        unreached.map(|slot| slot.var.clone()).collect()
    }

    /// Bytes of the Vars, and of the buffers that there are.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let bytes = |var: &Var| (var.elem_count() * var.dtype().size_in_bytes()) as u64;
        let vars = self.slots.iter().map(|slot| bytes(&slot.var));
        let buffers = self.slots.iter().filter_map(|slot| slot.buffer.as_ref());
        (vars.sum(), buffers.map(bytes).sum())
    }

    pub(super) fn first_var(&self) -> Option<&Var> {
        self.slots.first().map(|slot| &slot.var)
    }

    /// The backward pass, of the loss as `scale` makes it; the graph is gone when it returns.
    pub(super) fn differentiate(
        &self,
        loss: Loss,
        samples: usize,
        scale: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Contribution> {
        let Weighted {
            value,
            factor,
            weight,
        } = loss.weighted(samples)?;
        let gradients = if weight == 0. {
            self.slots.iter().map(|_| None).collect()
        } else {
            let mut store = run_phase(Phase::Backward, || {
                Ok::<_, Error>(scale(&value)?.backward()?)
            })?;
            // A Var's gradient may hang on to the graph that it was computed from, and keep the activations alive.
            let gradients = self.slots.iter().map(|slot| store.remove(&slot.var));
            gradients.map(|gradient| Some(gradient?.detach())).collect()
        };
        let loss = Weighted {
            value: value.detach(),
            factor,
            weight,
        };
        Ok(Contribution {
            loss,
            samples,
            gradients,
        })
    }

    /// Adds gradients to the buffers: first everything that can run out of memory, then the sums, in place.
    pub(super) fn accumulate(&mut self, contribution: Contribution) -> Result<()> {
        let Contribution {
            loss,
            samples,
            gradients,
        } = contribution;
        run_phase(Phase::Accumulate, || self.prepare(&gradients))?;
        if loss.weight > 0. {
            self.blend(&loss, gradients)?;
            let Weighted {
                value,
                factor,
                weight,
            } = loss;
            self.window.loss.push(&value, factor, weight);
        }
        self.window.samples = self.window.samples.saturating_add(samples);
        self.window.sizes.push(samples);
        Ok(())
    }

    fn prepare(&mut self, gradients: &[Option<Tensor>]) -> Result<()> {
        for (slot, gradient) in self.slots.iter_mut().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            if gradient.shape() != slot.var.shape() {
                return Err(ParameterError::Gradient {
                    parameter: slot.index.to_string(),
                    expected: slot.var.shape().clone(),
                    found: gradient.shape().clone(),
                }
                .into());
            }
            if slot.buffer.is_none() {
                let dtype = match slot.var.dtype() {
                    DType::F16 | DType::BF16 => DType::F32,
                    dtype => dtype,
                };
                let buffer = Var::zeros(slot.var.shape(), dtype, slot.var.device())?;
                slot.buffer = Some(buffer);
            }
        }
        Ok(())
    }

    /// The running weighted mean: with W the weight so far and w the new one, `mean · W/(W+w) + gradient · factor/(W+w)`.
    fn blend(&mut self, loss: &Weighted, gradients: Vec<Option<Tensor>>) -> Result<()> {
        let before = self.window.loss.weight();
        let total = before + loss.weight;
        let (keep, add) = (before / total, loss.factor / total);
        for (index, gradient) in gradients.into_iter().enumerate() {
            let blended = run_phase(Phase::Accumulate, || {
                self.slots
                    .get_mut(index)
                    .map_or(Ok(()), |slot| slot.blend(keep, add, gradient))
            });
            match blended {
                Ok(()) => {}
                // Nothing has been changed yet.
                Err(reason) if index == 0 => return Err(reason),
                Err(reason) => {
                    return match self.reset().samples {
                        0 => Err(reason),
                        samples => Err(WindowLost { samples, reason }.into()),
                    };
                }
            }
        }
        Ok(())
    }
}
