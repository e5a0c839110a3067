use std::collections::BTreeMap;

use candle_core::{Tensor, Var};
use serde::{Deserialize, Serialize};

use super::accumulating::AccumulatingTrainer;
use super::accumulator::{GradientAccumulator, Loading};
use super::adaptive::AdaptiveTrainer;
use super::positions::Positions;
use super::ranks::Ranks;
use super::report::Recent;
use crate::batch::{Consumer, Position};
use crate::error::{Result, StateError};
use crate::optim::{Commit, Parameter, StateDict};

/// What can be saved and continued in another process; for checkpoints.
///
/// [`AdaptiveTrainer`], [`AccumulatingTrainer`] and [`GradientAccumulator`] implement it. A type that wraps one of them hands every method on.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::train::Resumable;
/// use candle_headroom::{AdaptiveTrainer, Sgd};
///
/// /// Works with every trainer.
/// fn names(trainer: &impl Resumable) -> Vec<String> {
///     trainer.model().into_iter().map(|parameter| parameter.name).collect()
/// }
///
/// let w = Var::new(&[0f32], &Device::Cpu)?;
/// let optimizer = Sgd::builder(vec![("w", w)]).build()?;
/// let trainer = AdaptiveTrainer::builder(optimizer).build()?;
/// assert_eq!(names(&trainer), ["w"]);
/// assert!(trainer.is_new() && trainer.updates() == 0);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub trait Resumable {
    /// Returns all parameters by name, frozen ones included, and after them [named
    /// buffers](super::AdaptiveTrainerBuilder::buffers) that are none of them, as `buffers.0` and so on.
    fn model(&self) -> Vec<Parameter>;

    /// Returns the values to save under these names: those of the parameters, and of named buffers those that they had before the batches
    /// that were accumulated since the last update, because a resumed run reads these again.
    fn values(&self) -> Vec<(String, Tensor)> {
        let model = self.model().into_iter();
        model
            .map(|Parameter { name, var }| (name, var.as_detached_tensor()))
            .collect()
    }

    /// Returns everything else that the next step depends on: the optimizer's state as tensors, and as text in the metadata the number
    /// of updates, the positions of loaders after the last update, the seed, which parameters still await their first gradient, and what
    /// policies have learned. The tensors are copies, which further steps do not change: a thread may write them meanwhile.
    ///
    /// # Errors
    /// Those of the optimizer's [`state`](Commit::state), and [`UpdateInterrupted`](crate::error::UpdateInterrupted) if an update failed
    /// half-way and nothing was restored since.
    fn state(&self) -> Result<StateDict>;

    /// Returns this rank's part of the optimizer's state if the ranks divide it, and `None` if each has all of it, as by default. A type that
    /// wraps a trainer hands this on, on all ranks: [`Checkpoints`](crate::checkpoint::Checkpoints) has each rank write its part.
    ///
    /// # Errors
    /// Those of [`state`](Self::state).
    fn part(&self) -> Result<Option<StateDict>> {
        Ok(None)
    }

    /// Returns the part of [`state`](Self::state)'s metadata that is not the optimizer's. It reads nothing from the device.
    ///
    /// # Errors
    /// Errors from writing JSON.
    fn progress(&self) -> Result<BTreeMap<String, String>>;

    /// Returns whether it has made no update and loaded nothing. Then a checkpoint replaces its parameters without keeping a copy of what
    /// they were, and calls [`load_state`](Self::load_state) twice: before the parameters change, so that what does not fit is refused, and
    /// again behind them. `false` by default.
    fn is_new(&self) -> bool {
        false
    }

    /// Tells a [new](Self::is_new) trainer that its parameters are about to be replaced: it refuses to train, and to be saved, until
    /// [`load_state`](Self::load_state) succeeds.
    fn begin_load(&mut self) {}

    /// Continues from what [`state`](Self::state) returned. Gradients that were accumulated are dropped. After an interrupted update, set
    /// the parameters first.
    ///
    /// # Errors
    /// Those of the optimizer's [`load_state`](Commit::load_state), and [`StateError`] for counters that
    /// cannot be read. Nothing changes then.
    fn load_state(&mut self, state: &StateDict) -> Result<()>;

    /// Returns the number of updates so far.
    fn updates(&self) -> u64;
}

fn parameters(optimizer: &impl Commit) -> Vec<Parameter> {
    let mut all = optimizer.parameters().to_vec();
    all.extend(optimizer.frozen());
    all
}

/// Its name in a state dict's metadata.
const PROGRESS: &str = "training";
const VERSION: u32 = 2;
/// More updates and batches than any run has.
const MOST: u64 = 1 << 53;

/// How far a training has come, as it is saved.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    version: u32,
    updates: u64,
    /// The parameters that await their first gradient, with the number of updates in which it may arrive; `None` in older state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    awaited: Option<BTreeMap<String, usize>>,
    /// What only a trainer has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trainer: Option<Trainer>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Trainer {
    /// From which the seeds of micro-batches are derived.
    seed: u64,
    /// Finished batches of training and of evaluation.
    batches: [u64; 2],
    positions: Positions,
}

/// What every version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Progress {
    fn metadata<O: Commit>(
        accumulator: &GradientAccumulator<O>,
        trainer: Option<Trainer>,
    ) -> Result<BTreeMap<String, String>> {
        let parameters = accumulator.optimizer.parameters();
        let progress = Self {
            version: VERSION,
            updates: accumulator.updates,
            awaited: Some(accumulator.slots.awaited(parameters)),
            trainer,
        };
        let text = serde_json::to_string(&progress).map_err(candle_core::Error::wrap)?;
        Ok(BTreeMap::from([(PROGRESS.to_owned(), text)]))
    }

    /// `None` for state that an optimizer saved by itself.
    fn read(state: &StateDict) -> Result<Option<Self>> {
        let Some(text) = state.metadata.get(PROGRESS) else {
            return Ok(None);
        };
        let unfit = |problem: String| StateError {
            unfit: vec![format!("{PROGRESS}: {problem}")],
            ..StateError::default()
        };
        let wrong = |error: serde_json::Error| unfit(error.to_string());
        let Version { version } = serde_json::from_slice(text.as_bytes()).map_err(wrong)?;
        if version != VERSION {
            let problem = format!(
                "version {version}, this crate reads version {VERSION}: continue with the crate that wrote it, or a newer one"
            );
            return Err(unfit(problem).into());
        }
        let progress: Self = serde_json::from_slice(text.as_bytes()).map_err(wrong)?;
        let batches = progress.trainer.iter().flat_map(|trainer| trainer.batches);
        let mut counts = batches.chain([progress.updates]);
        match counts.find(|count| *count > MOST) {
            Some(count) => Err(unfit(format!("counts {count}, at most 2^53 is possible")).into()),
            None => Ok(Some(progress)),
        }
    }
}

impl<O: Commit> GradientAccumulator<O> {
    pub(super) fn optimizer_state(&self) -> Result<StateDict> {
        self.refuse_if_interrupted()?;
        self.optimizer.state()
    }

    /// Continues from saved state. Returns what only a trainer has.
    fn restore(&mut self, state: &StateDict) -> Result<Option<Trainer>> {
        let progress = Progress::read(state)?;
        self.optimizer.load_state(state)?;
        self.reset();
        self.loading = Loading::Done;
        if self.is_interrupted {
            // Where an optimizer saves nothing, it still has what the interrupted update left in it.
            self.is_interrupted = !self.optimizer.is_restored();
        }
        let Some(progress) = progress else {
            return Ok(None);
        };
        self.updates = progress.updates;
        if let Some(awaited) = progress.awaited
            // Loading may have frozen or thawed parameters. What is wrong with the new list is the next step's error.
            && self.slots.follow(self.optimizer.parameters()).is_ok()
        {
            self.slots.resume(&awaited);
        }
        Ok(progress.trainer)
    }
}

impl<O: Commit> Resumable for GradientAccumulator<O> {
    fn model(&self) -> Vec<Parameter> {
        parameters(&self.optimizer)
    }

    fn state(&self) -> Result<StateDict> {
        let mut state = self.optimizer_state()?;
        state.metadata.append(&mut self.progress()?);
        Ok(state)
    }

    fn progress(&self) -> Result<BTreeMap<String, String>> {
        Progress::metadata(self, None)
    }

    fn is_new(&self) -> bool {
        self.updates == 0 && self.loading == Loading::Never && !self.is_interrupted
    }

    fn begin_load(&mut self) {
        self.loading = Loading::Begun;
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.restore(state).map(|_| ())
    }

    fn updates(&self) -> u64 {
        self.updates
    }
}

impl<O: Commit> Resumable for AdaptiveTrainer<O> {
    fn model(&self) -> Vec<Parameter> {
        let mut model = parameters(self.optimizer());
        let buffers = self.core.buffers().enumerate();
        let buffers =
            buffers.filter(|(_, var)| model.iter().all(|known| known.var.id() != var.id()));
        let buffers: Vec<_> = buffers
            .map(|(index, var)| Parameter::new(format!("buffers.{index}"), var.clone()))
            .collect();
        model.extend(buffers);
        model
    }

    fn values(&self) -> Vec<(String, Tensor)> {
        let model = self.model().into_iter();
        let value = |var: &Var| self.core.before_window(var).as_detached_tensor();
        model
            .map(|Parameter { name, var }| (name, value(&var)))
            .collect()
    }

    fn state(&self) -> Result<StateDict> {
        Self::state(self)
    }

    fn part(&self) -> Result<Option<StateDict>> {
        let is_divided = self.core.ranks.is_some() && self.optimizer().is_sharded();
        let part = is_divided.then(|| self.core.accumulator.optimizer_state());
        part.transpose()
    }

    fn progress(&self) -> Result<BTreeMap<String, String>> {
        let trainer = Trainer {
            seed: self.engine.seed,
            // A resumed run reads accumulated batches again, so they are not counted.
            batches: [self.core.accumulator.batches, self.evaluation.batches],
            positions: self.core.positions.clone(),
        };
        let mut metadata = Progress::metadata(&self.core.accumulator, Some(trainer))?;
        for (name, engine) in [(TRAINING, &self.engine), (EVALUATION, &self.evaluation)] {
            let learned = engine.policy.state();
            metadata.extend(learned.map(|learned| (name.to_owned(), learned)));
        }
        Ok(metadata)
    }

    fn is_new(&self) -> bool {
        self.core.accumulator.is_new()
    }

    fn begin_load(&mut self) {
        self.core.accumulator.begin_load();
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        Self::load_state(self, state)
    }

    fn updates(&self) -> u64 {
        Self::updates(self)
    }
}

impl<O> Consumer for AdaptiveTrainer<O> {
    fn position(&self, loader: &str) -> Option<&Position> {
        self.core.positions.consumed(loader)
    }

    fn unclaimed(&self) -> Vec<String> {
        self.core.awaited.unclaimed()
    }

    fn claim(&self, loader: &str, at: &Position) {
        self.core.awaited.claim(loader, at.place());
    }
}

/// Passes methods on to the trainer within.
macro_rules! within {
    ($(fn $name:ident($($arg:ident: $type:ty),*) -> $returned:ty;)+) => {
        $(fn $name(&self, $($arg: $type),*) -> $returned {
            (**self).$name($($arg),*)
        })+
    };
}

impl<O: Commit> Resumable for AccumulatingTrainer<O> {
    within! {
        fn model() -> Vec<Parameter>;
        fn values() -> Vec<(String, Tensor)>;
        fn state() -> Result<StateDict>;
        fn part() -> Result<Option<StateDict>>;
        fn progress() -> Result<BTreeMap<String, String>>;
        fn is_new() -> bool;
        fn updates() -> u64;
    }

    fn begin_load(&mut self) {
        (**self).begin_load();
    }

    fn load_state(&mut self, state: &StateDict) -> Result<()> {
        (**self).load_state(state)
    }
}

impl<O> Consumer for AccumulatingTrainer<O> {
    within! {
        fn position(loader: &str) -> Option<&Position>;
        fn unclaimed() -> Vec<String>;
        fn claim(loader: &str, at: &Position) -> ();
    }
}

/// Names of the policies' state in a state dict's metadata.
const TRAINING: &str = "micro_batches.training";
const EVALUATION: &str = "micro_batches.evaluation";

impl<O: Commit> AdaptiveTrainer<O> {
    /// Returns the optimizer's state, how far the training has come, and what the policies of training and evaluation have learned
    /// about memory, to save beside the model: a resumed run counts on, draws the same numbers and starts with sizes that fit.
    ///
    /// `trainer.state()?.save(path)?` writes a file, and `trainer.load_state(&StateDict::load(path)?)?` continues from it.
    ///
    /// With a [sharded](crate::optim::FusedBuilder::sharded) optimizer in a [group](super::AdaptiveTrainerBuilder::group) all ranks call it together.
    /// Rank 0's is the whole state, which any number of ranks can load, and the others' are empty. All of it comes to rank 0's host memory.
    ///
    /// ```
    /// # use candle_core::{Device, Tensor, Var};
    /// # use candle_headroom::{AdamW, AdaptiveTrainer};
    /// # let w = Var::new(&[0f32], &Device::Cpu)?;
    /// # let x = Tensor::new(&[1f32, 3.], &Device::Cpu)?;
    /// use candle_headroom::optim::StateDict;
    ///
    /// let optimizer = AdamW::builder(vec![("w", w.clone())]).build()?;
    /// let mut trainer = AdaptiveTrainer::builder(optimizer).build()?;
    /// trainer.step(&x, |x, _| x.broadcast_sub(&w)?.sqr()?.mean_all())?;
    /// # let path = std::env::temp_dir().join(format!("candle-headroom-state-{}.safetensors", std::process::id()));
    /// trainer.state()?.save(&path)?;
    /// trainer.load_state(&StateDict::load(&path)?)?;
    /// assert_eq!(trainer.updates(), 1);
    /// # std::fs::remove_file(path).ok();
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the optimizer's [`state`](Commit::state), and [`UpdateInterrupted`](crate::error::UpdateInterrupted) after one.
    pub fn state(&self) -> Result<StateDict> {
        let mut more = self.progress()?;
        let mut state = self.core.optimizer_state()?;
        state.metadata.append(&mut more);
        Ok(state)
    }

    /// Continues from saved state: [`updates`](Self::updates), [`MicroBatch::step`](crate::MicroBatch::step) and the seed are those
    /// of the run that saved it. Batches that were accumulated are dropped, and [`Loader`](crate::data::Loader)s have to continue where the saved
    /// run stopped, as [`Loader::resume`](crate::data::Loader::resume) makes them. Buffers stay, because they are loaded with the parameters.
    /// Where a policy's state is missing, or cannot be read
    /// (which is logged), the policy stays as it is.
    ///
    /// It ends the refusal after [`UpdateInterrupted`](crate::error::UpdateInterrupted), unless the optimizer saves no state: restore the
    /// parameters first, as [`Checkpoints::resume`](crate::checkpoint::Checkpoints::resume) does.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom::{AdamW, AdaptiveTrainer};
    /// # use candle_nn::{Module, VarBuilder, VarMap, linear};
    /// # let varmap = VarMap::new();
    /// # let model = linear(4, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let trainer = || AdaptiveTrainer::builder(AdamW::builder(&varmap).build()?).build();
    /// let mut first = trainer()?;
    /// let batch = Tensor::ones((8, 4), DType::F32, &Device::Cpu)?; // [samples, features]
    /// first.step(&batch, |x, _| model.forward(&x)?.sqr()?.mean_all())?;
    ///
    /// let mut second = trainer()?; // in another run, which has loaded the parameters
    /// second.load_state(&first.state()?)?;
    /// assert_eq!(second.updates(), 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of the optimizer's [`load_state`](Commit::load_state), and [`StateError`] for counters that
    /// cannot be read. Nothing changes then.
    pub fn load_state(&mut self, state: &StateDict) -> Result<()> {
        let trainer = self.core.accumulator.restore(state)?;
        self.core.forget_window();
        // A printed report would show a loss of the run before.
        self.core.accumulator.recent = Recent::default();
        self.core.given = 0;
        self.core.ranks.iter_mut().for_each(Ranks::compare);
        if let Some(trainer) = trainer {
            self.engine.seed = trainer.seed;
            [self.core.accumulator.batches, self.evaluation.batches] = trainer.batches;
            self.core.positions = trainer.positions;
            self.core.awaited.restore(self.core.positions.places());
        }
        let engines = [&mut self.engine, &mut self.evaluation];
        for (name, engine) in [TRAINING, EVALUATION].into_iter().zip(engines) {
            if let Some(learned) = state.metadata.get(name)
                && let Err(error) = engine.policy.load_state(learned)
            {
                tracing::warn!(%error, "saved micro-batch sizes are ignored");
            }
        }
        Ok(())
    }
}
