use std::fmt::Debug;
use std::ops::Range;

use candle_core::backprop::GradStore;
use candle_core::{Device, Error, Result as CandleResult, Tensor};

use super::adjustment::Progress;
use super::managed::Managed;
use super::setup::Setup;
use crate::error::{Phase, Result, invalid};
use crate::optim::Committed;
use crate::optim::rule::Rule;
use crate::optim::state_dict::MASTER;
use crate::testing;

/// The state of all parameters that are not frozen, and the passes over them, on one kind of device.
pub trait Engine<R>: Debug + Send + Sync {
    /// Drops the state of frozen parameters and makes what others lack. Loaded state replaces it. An error changes nothing.
    fn set_up(&mut self, setup: &Setup<R>, loaded: Option<&Loaded>) -> Result<()>;

    /// Returns the sum of squares of all gradients, before any adjustment; NaN if one of them is not finite. `setup` may be cut
    /// otherwise than the state. With an error nothing has changed.
    fn measure(&mut self, setup: &Setup<R>, gradients: &GradStore) -> Result<f64>;

    /// `squares` replaces the sum that [`measure`](Self::measure) returns.
    fn commit(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        squares: Option<f64>,
    ) -> Result<Committed>;

    /// Returns the loss times the current loss scale.
    fn scale(&self, loss: &Tensor) -> Result<Tensor>;

    fn progress(&self) -> Result<Progress>;

    /// Copies the state of the parameter with this index to host memory; `None` if there is none.
    fn snapshot(&self, index: usize, parameter: &Managed) -> Result<Option<Snapshot>>;
}

/// Returns the state of each parameter for [`Engine::set_up`]: loaded, or that of `old`, or new; `None` if it is frozen or none of its
/// elements are updated here.
pub fn states<R: Rule, S: Clone>(
    setup: &Setup<R>,
    loaded: Option<&Loaded>,
    old: &[Option<S>],
    new: impl Fn(&Managed, Option<&Snapshot>) -> Result<S>,
) -> Result<Vec<Option<S>>> {
    let state = |(index, parameter): (usize, &Managed)| {
        if setup.is_frozen(parameter) || parameter.ranges.is_empty() {
            return Ok(None);
        }
        if let Some(loaded) = loaded {
            let saved = loaded.snapshots.get(index).and_then(Option::as_ref);
            return new(parameter, saved).map(Some);
        }
        if let Some(Some(state)) = old.get(index) {
            return Ok(Some(state.clone()));
        }
        if !old.is_empty() {
            testing::inject(Phase::Optimizer)?;
        }
        new(parameter, None).map(Some)
    };
    setup.parameters.iter().enumerate().map(state).collect()
}

/// The state of one parameter: the tensors of [`Managed::kept`], in their form or as they were saved, and how often it was updated.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub step: u64,
    pub tensors: Vec<Tensor>,
}

/// Saved state: of each parameter (`None` for frozen ones and for new state), and the counters.
#[derive(Debug)]
pub struct Loaded {
    pub snapshots: Vec<Option<Snapshot>>,
    pub progress: Progress,
}

impl Snapshot {
    /// Returns the state of the elements of `parameter` from that of the elements in `held`, both as they are saved.
    pub fn cut(&self, held: &[Range<usize>], parameter: &Managed) -> Result<Self> {
        if held == parameter.ranges {
            return Ok(self.clone());
        }
        let mut places = Vec::new();
        for range in &parameter.ranges {
            let mut before = 0;
            let around = held.iter().find(|held| {
                let is_around = held.start <= range.start && range.end <= held.end;
                before += if is_around { 0 } else { held.len() };
                is_around
            });
            let Some(around) = around else {
                return Err(invalid!(
                    Optimizer,
                    "the state of elements {range:?} of parameter `{}` is not on this rank: pass `shard` the ranks' states, put together by `StateDict::merge`",
                    parameter.name
                ));
            };
            places.push((before + range.start - around.start, range.len()));
        }
        let tensors = self.tensors.iter().map(|tensor| {
            let row = tensor.flatten_all()?;
            let parts = places.iter().map(|&(start, len)| row.narrow(0, start, len));
            Tensor::cat(&parts.collect::<CandleResult<Vec<_>>>()?, 0)
        });
        Ok(Self {
            step: self.step,
            tensors: tensors.collect::<CandleResult<_>>()?,
        })
    }

    /// Makes state on a device: copies of saved tensors, in the form that the optimizer keeps, or new state.
    pub fn new(parameter: &Managed, saved: Option<&Self>, device: &Device) -> Result<Self> {
        let kept = 0..parameter.kept.len();
        let tensors = kept.map(|index| kept_tensor(parameter, index, saved, device));
        Ok(Self {
            step: saved.map_or(0, |saved| saved.step),
            tensors: tensors.collect::<CandleResult<_>>()?,
        })
    }
}

/// Makes one of the tensors of [`Managed::kept`] on a device: a copy of the saved one, or a new one.
pub fn kept_tensor(
    parameter: &Managed,
    index: usize,
    saved: Option<&Snapshot>,
    device: &Device,
) -> CandleResult<Tensor> {
    let held = parameter.kept.get(index).ok_or_else(misplaced)?;
    match saved.map(|saved| saved.tensors.get(index)) {
        Some(Some(tensor)) => held
            .pack(&tensor.to_device(&Device::Cpu)?)?
            .to_device(device),
        // Saved state may be without masters.
        _ if held.name == MASTER => {
            let values = parameter.values()?.reshape(held.dims())?;
            values.to_device(device)?.to_dtype(held.dtype())
        }
        Some(None) => Err(misplaced()),
        None => Tensor::zeros(held.dims(), held.dtype(), device),
    }
}

/// An error that the checks before an update should prevent.
pub fn misplaced() -> Error {
    Error::Msg("the type or device of a gradient or parameter has changed".to_owned()).bt()
}
