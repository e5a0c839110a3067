use std::sync::{Mutex, PoisonError};

use candle_core::backprop::GradStore;
use candle_core::{DType, Error as CandleError, Result as CandleResult, Tensor};
use half::{bf16, f16};

use super::share::{By, SHARED, is_shared, share, take};
use super::state::{State, misplaced};
use super::team;
use crate::error::{Result, UpdateInterrupted};
use crate::optim::Committed;
use crate::optim::fused::{Engine as _, Loaded, Managed, Progress, Setup, Snapshot, states};
use crate::optim::{fused, rule::Rule};

/// The state of the parameters, and the passes over them.
#[derive(Debug)]
pub struct Engine {
    states: Vec<Option<State>>,
    progress: Progress,
    /// The threads that update the small parameters.
    small_by: By,
}

/// Number of parameters that a thread takes at a time.
const SMALL_AT_A_TIME: usize = 8;

impl Engine {
    pub fn new<R: Rule>(setup: &Setup<R>) -> Result<Self> {
        let mut engine = Self {
            states: Vec::new(),
            progress: Progress::new(&setup.adjustment),
            small_by: By::Caller,
        };
        engine.set_up(setup, None)?;
        Ok(engine)
    }

    /// Runs `work` on each parameter that has a gradient. Large parameters come one after the other, each shared by candle's threads.
    /// Small ones are shared out among the team's threads, because `work` takes the locks of the parameters.
    fn each<R: Rule>(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        work: &(impl Fn(&mut State, &Managed, &Tensor) -> CandleResult<()> + Sync),
    ) -> CandleResult<()> {
        let all = |parameters: &[Managed], states: &mut [Option<State>], large: bool| {
            let chosen = parameters.iter().zip(states);
            let mut chosen = chosen.filter(|(parameter, _)| is_shared(parameter.len) == large);
            chosen.try_for_each(|(parameter, state)| {
                match (state, setup.gradient(parameter, gradients)) {
                    (Some(state), Some(gradient)) => work(state, parameter, gradient),
                    _ => Ok(()),
                }
            })
        };
        all(&setup.parameters, &mut self.states, true)?;
        let result = Mutex::new(Ok(()));
        let is_whole = share(
            self.small_by,
            setup.parameters.len().div_ceil(SMALL_AT_A_TIME),
            (&*setup.parameters, &mut *self.states),
            |(parameters, states)| {
                let count = SMALL_AT_A_TIME.min(parameters.len());
                let (some, rest) = parameters.split_at_checked(count)?;
                *parameters = rest;
                Some((some, take(states, count)))
            },
            |(parameters, states)| {
                if let Err(error) = all(parameters, states, false) {
                    *result.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
                }
            },
        );
        match is_whole {
            true => result.into_inner().unwrap_or_else(PoisonError::into_inner),
            false => Err(CandleError::Msg("a thread of the update panicked".to_owned()).bt()),
        }
    }

    /// Returns the sum of squares of all gradients, before any adjustment; NaN if one of them is not finite.
    fn survey<R: Rule>(&mut self, setup: &Setup<R>, gradients: &GradStore) -> Result<f64> {
        self.each(setup, gradients, &|state, parameter, gradient| {
            let len = parameter.len;
            match parameter.var.dtype() {
                DType::F32 => state.survey::<f32>(len, gradient),
                DType::F64 => state.survey::<f64>(len, gradient),
                DType::F16 => state.survey::<f16>(len, gradient),
                DType::BF16 => state.survey::<bf16>(len, gradient),
                _ => Err(misplaced()),
            }
        })?;
        let surveyed = self.states.iter().zip(&setup.parameters);
        let surveyed = surveyed.filter(|(_, p)| setup.gradient(p, gradients).is_some());
        // `sum` would start at -0.
        Ok(surveyed
            .filter_map(|(state, _)| state.as_ref())
            .fold(0., |total, state| total + state.squares))
    }
}

impl<R: Rule> fused::Engine<R> for Engine {
    fn set_up(&mut self, setup: &Setup<R>, loaded: Option<&Loaded>) -> Result<()> {
        self.states = states(setup, loaded, &mut self.states, State::new::<R>)?;
        self.progress = loaded.map_or(self.progress, |loaded| loaded.progress);
        let small = setup.updated().map(|parameter| parameter.len);
        let small: usize = small.filter(|len| !is_shared(*len)).sum();
        self.small_by = By::Caller;
        // Waking other threads pays only for this many elements.
        if small >= SHARED {
            team::prepare();
            self.small_by = By::Team;
        }
        Ok(())
    }

    fn commit(&mut self, setup: &Setup<R>, gradients: &GradStore) -> Result<Committed> {
        let squares = match setup.adjustment.needs_survey() {
            true => Some(self.survey(setup, gradients)?),
            false => None,
        };
        let Some(scale) = self.progress.count(squares, &setup.adjustment) else {
            return Ok(Committed::Skipped);
        };
        let moved = self.each(
            setup,
            gradients,
            &|state, parameter, gradient| match parameter.var.dtype() {
                DType::F32 => state.update::<R, f32>(setup, parameter, gradient, scale),
                DType::F64 => state.update::<R, f64>(setup, parameter, gradient, scale),
                DType::F16 => state.update::<R, f16>(setup, parameter, gradient, scale),
                DType::BF16 => state.update::<R, bf16>(setup, parameter, gradient, scale),
                _ => Err(misplaced()),
            },
        );
        // The checks before an update rule this out. If it happens, some parameters have changed.
        moved.map_err(|error| UpdateInterrupted {
            reason: Some(error.into()),
        })?;
        Ok(Committed::Applied)
    }

    fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        Ok((loss * self.progress.scale())?)
    }

    fn progress(&self) -> Result<Progress> {
        Ok(self.progress)
    }

    fn snapshot(&self, index: usize, parameter: &Managed) -> Result<Option<Snapshot>> {
        let state = self.states.get(index).and_then(Option::as_ref);
        Ok(state.map(|state| state.snapshot(parameter)))
    }
}
