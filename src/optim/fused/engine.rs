use std::fmt::Debug;

use candle_core::backprop::GradStore;
use candle_core::{Device, Error, Result as CandleResult, Tensor};

use super::adjustment::Progress;
use super::host_update::HostUpdates;
use super::managed::Managed;
use super::setup::Setup;
use crate::error::{Phase, Result};
use crate::optim::Committed;
use crate::optim::entries::MASTER;
use crate::optim::rule::Rule;
use crate::testing;

/// The state of all pieces that are not frozen, and the passes over them, on one kind of device.
pub trait Engine<R>: Debug + Send + Sync {
    /// Drops the state of frozen parameters and makes what others lack. Loaded state replaces it. An error changes nothing.
    fn set_up(&mut self, setup: &Setup<R>, loaded: Option<&Loaded>) -> Result<()>;

    /// Returns the sum of squares of all gradients, before any adjustment; NaN if one of them is not finite. `setup` may be cut
    /// otherwise than the state; it is the same as in the last call unless `is_new`.
    fn measure(&mut self, setup: &Setup<R>, is_new: bool, gradients: &GradStore) -> Result<f64>;

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

    /// How moments in host memory are updated; `None` without any.
    fn host_update(&self) -> Option<HostUpdates> {
        None
    }

    /// Copies the state of the piece with this index to host memory; `None` if it is frozen.
    fn snapshot(&self, index: usize, piece: &Managed) -> Result<Option<Snapshot>>;
}

/// Returns the state of each piece for [`Engine::set_up`]: loaded, or that of `old`, or new.
pub fn states<R: Rule, S: Clone>(
    setup: &Setup<R>,
    loaded: Option<&Loaded>,
    old: &[Option<S>],
    new: impl Fn(&Managed, Option<&Snapshot>) -> Result<S>,
) -> Result<Vec<Option<S>>> {
    let states = setup.pieces.iter().enumerate().map(|(index, parameter)| {
        if setup.is_frozen(parameter) {
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
    });
    states.collect()
}

/// The state of one piece: the tensors of [`Managed::kept`], in their form or as they were saved, and how often it was updated.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub step: u64,
    pub tensors: Vec<Tensor>,
}

/// Saved state: of each piece (`None` for frozen ones and for new state), and the counters.
#[derive(Debug)]
pub struct Loaded {
    pub snapshots: Vec<Option<Snapshot>>,
    pub progress: Progress,
}

impl Snapshot {
    /// Returns the state of a piece of `parameter`, whose state this is in the form in which it is saved.
    pub fn cut(&self, parameter: &Managed, piece: &Managed) -> CandleResult<Self> {
        let mut tensors = self.tensors.clone();
        if piece.len < parameter.len {
            let start = piece.first - parameter.first;
            for tensor in &mut tensors {
                *tensor = tensor.flatten_all()?.narrow(0, start, piece.len)?;
            }
        }
        let step = self.step;
        Ok(Self { step, tensors })
    }

    /// Makes state on a device: copies of saved tensors, in the form that the optimizer keeps, or new state.
    pub fn new(parameter: &Managed, saved: Option<&Self>, device: &Device) -> Result<Self> {
        Self::from_index(0, parameter, saved, device)
    }

    /// The same without the first `start` tensors.
    pub fn from_index(
        start: usize,
        parameter: &Managed,
        saved: Option<&Self>,
        device: &Device,
    ) -> Result<Self> {
        let kept = start..parameter.kept.len();
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
        _ if held.kept.name == MASTER => {
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
