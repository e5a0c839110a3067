use std::fmt::Debug;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor};

use super::managed::Managed;
use super::progress::Progress;
use super::setup::Setup;
use crate::error::{Phase, Result};
use crate::optim::Committed;
use crate::optim::rule::Rule;
use crate::testing;

/// The state of all parameters that are not frozen, and the passes over them, on one kind of device.
pub trait Engine<R>: Debug + Send + Sync {
    /// Drops the state of frozen parameters and makes the state that others lack. Loaded state replaces existing state. After an error
    /// nothing has changed.
    fn set_up(&mut self, setup: &Setup<R>, loaded: Option<&Loaded>) -> Result<()>;

    fn commit(&mut self, setup: &Setup<R>, gradients: &GradStore) -> Result<Committed>;

    /// Returns the loss times the current loss scale.
    fn scale(&self, loss: &Tensor) -> Result<Tensor>;

    fn progress(&self) -> Result<Progress>;

    /// Copies the state of the parameter with this index to host memory; `None` if it is frozen.
    fn snapshot(&self, index: usize, parameter: &Managed) -> Result<Option<Snapshot>>;
}

/// Returns the state of each parameter for [`Engine::set_up`]: loaded, or moved from `old`, or new.
pub fn states<R: Rule, S>(
    setup: &Setup<R>,
    loaded: Option<&Loaded>,
    old: &mut Vec<Option<S>>,
    new: impl Fn(&Managed, Option<&Snapshot>) -> Result<S>,
) -> Result<Vec<Option<S>>> {
    let is_thawing = loaded.is_none() && !old.is_empty();
    old.resize_with(setup.parameters.len(), || None);
    let made = setup.parameters.iter().zip(old.iter()).enumerate();
    let made = made.map(|(index, (parameter, old))| {
        let is_kept = loaded.is_none() && old.is_some();
        if is_kept || setup.is_frozen(parameter) {
            return Ok(None);
        }
        if is_thawing {
            testing::inject(Phase::Optimizer)?;
        }
        let saved = loaded.and_then(|loaded| loaded.snapshots.get(index)?.as_ref());
        new(parameter, saved).map(Some)
    });
    let mut states = made.collect::<Result<Vec<_>>>()?;
    for ((parameter, state), old) in setup.parameters.iter().zip(&mut states).zip(old.drain(..)) {
        if !setup.is_frozen(parameter) {
            *state = state.take().or(old);
        }
    }
    Ok(states)
}

/// The state of one parameter: its tensors, its master weights, and how often it was updated.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub step: u64,
    pub tensors: Vec<Tensor>,
    pub master: Option<Tensor>,
}

/// Saved state: of each parameter (`None` for frozen ones), and the counters.
#[derive(Debug)]
pub struct Loaded {
    pub snapshots: Vec<Option<Snapshot>>,
    pub progress: Progress,
}

impl Snapshot {
    /// Makes state on a device: copies of saved tensors, in the types that the optimizer keeps, or new state.
    pub fn new(parameter: &Managed, saved: Option<&Self>, device: &Device) -> Result<Self> {
        let (tensors, master): (candle_core::Result<_>, _) = match saved {
            Some(saved) => {
                let copy = |tensor: &Tensor, dtype| {
                    let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(dtype)?;
                    tensor.force_contiguous()?.to_device(device)
                };
                let tensors = saved.tensors.iter().zip(&parameter.kept);
                let tensors = tensors.map(|(tensor, (_, dtype))| copy(tensor, *dtype));
                let master = saved.master.as_ref();
                (tensors.collect(), master.map(|m| copy(m, DType::F32)))
            }
            None => {
                let zeros = parameter.kept.iter();
                let zeros = zeros.map(|(kept, dtype)| Tensor::zeros(&*kept.dims, *dtype, device));
                let var = parameter.var.as_detached_tensor();
                let master = parameter.has_master.then(|| var.to_dtype(DType::F32));
                (zeros.collect(), master)
            }
        };
        Ok(Self {
            step: saved.map_or(0, |saved| saved.step),
            tensors: tensors?,
            master: master.transpose()?,
        })
    }
}
