use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use candle_core::backprop::GradStore;
use candle_core::{DType, Error as CandleError, Result as CandleResult, Tensor};

use super::share::{CHUNK, SHARED, is_shared};
use super::state::{State, add_squares};
use super::team::{self, lock};
use crate::error::{Result, UpdateInterrupted};
use crate::optim::Committed;
use crate::optim::fused::{Engine as _, Loaded, Managed, Progress, Setup, Snapshot, states};
use crate::optim::{fused, rule::Rule};

/// The caller updates this many small parameters alone.
const FEW: usize = 8;

/// The state of the parameters, and the passes over them.
#[derive(Debug, Default)]
pub struct Engine {
    states: Vec<Option<Arc<Mutex<State>>>>,
    progress: Progress,
    /// Whether the team updates the small parameters, not the caller alone.
    has_team: bool,
    /// For sums over elements that are not those of the states.
    partials: Vec<f64>,
}

impl Engine {
    pub fn new<R: Rule>(setup: &Setup<R>) -> Result<Self> {
        let mut engine = Self {
            progress: Progress::new(&setup.adjustment),
            ..Self::default()
        };
        engine.set_up(setup, None)?;
        Ok(engine)
    }

    /// Runs `work` on each parameter that has a gradient. Large ones come one after the other, each shared by candle's threads.
    /// Small ones are shared out among the team's threads, because `work` takes the locks of the parameters.
    fn each<R: Rule>(
        &self,
        setup: &Setup<R>,
        gradients: &GradStore,
        work: &(impl Fn(&mut State, &Managed, &Tensor) -> CandleResult<()> + Sync),
    ) -> CandleResult<()> {
        let update = |(parameter, state): (&Managed, &Option<Arc<Mutex<State>>>)| {
            let gradient = setup.gradient(parameter, gradients);
            match (state, gradient) {
                (Some(state), Some(gradient)) => work(&mut lock(state), parameter, gradient),
                _ => Ok(()),
            }
        };
        let all = setup.parameters.iter().zip(&self.states);
        let mut large = all.filter(|(parameter, _)| is_shared(parameter.owned()));
        large.try_for_each(update)?;
        let at = |index| setup.parameters.get(index).zip(self.states.get(index));
        let (next, result) = (AtomicUsize::new(0), Mutex::new(Ok(())));
        let small = || {
            while let Some(one) = at(next.fetch_add(1, Relaxed)) {
                if !is_shared(one.0.owned())
                    && let Err(error) = update(one)
                {
                    *lock(&result) = Err(error);
                }
            }
        };
        if !self.has_team {
            small();
        } else if !team::together(&small) {
            let panicked = "a thread of the update panicked".to_owned();
            return Err(CandleError::Msg(panicked).bt());
        }
        std::mem::replace(&mut *lock(&result), Ok(()))
    }

    /// Returns the sum of squares of all gradients, before any adjustment; NaN if one of them is not finite.
    fn survey<R: Rule>(&self, setup: &Setup<R>, gradients: &GradStore) -> Result<f64> {
        self.each(
            setup,
            gradients,
            &|state, parameter, gradient| match parameter.var.dtype() {
                DType::F64 => state.survey::<f64>(parameter, gradient),
                _ => state.survey::<f32>(parameter, gradient),
            },
        )?;
        let surveyed = self.states.iter().zip(&setup.parameters);
        let surveyed = surveyed.filter(|(_, p)| setup.gradient(p, gradients).is_some());
        // `sum` would start at -0.
        Ok(surveyed
            .filter_map(|(state, _)| state.as_ref())
            .fold(0., |total, state| total + lock(state).squares))
    }
}

impl<R: Rule> fused::Engine<R> for Engine {
    fn set_up(&mut self, setup: &Setup<R>, loaded: Option<&Loaded>) -> Result<()> {
        self.states = states(setup, loaded, &self.states, State::locked::<R>)?;
        self.progress = loaded.map_or(self.progress, |loaded| loaded.progress);
        let small = setup.updated().map(Managed::owned);
        let small: Vec<_> = small.filter(|len| !is_shared(*len)).collect();
        // Waking other threads pays only for this many elements, and not for a few parameters.
        self.has_team = small.len() > FEW && small.iter().sum::<usize>() >= SHARED;
        if self.has_team {
            team::prepare();
        }
        Ok(())
    }

    fn measure(&mut self, setup: &Setup<R>, _: bool, gradients: &GradStore) -> Result<f64> {
        let mut total = 0.;
        for parameter in &setup.parameters {
            let Some(gradient) = setup.gradient(parameter, gradients) else {
                continue;
            };
            let chunks = parameter.len.div_ceil(CHUNK);
            self.partials.resize(chunks.max(self.partials.len()), 0.);
            let partials = &mut self.partials;
            total = match parameter.full {
                DType::F64 => add_squares::<f64>(total, partials, parameter, gradient)?,
                _ => add_squares::<f32>(total, partials, parameter, gradient)?,
            };
        }
        Ok(total)
    }

    fn commit(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        squares: Option<f64>,
    ) -> Result<Committed> {
        let squares = match setup.adjustment.needs_survey() && squares.is_none() {
            true => Some(self.survey(setup, gradients)?),
            false => squares,
        };
        let Some(scale) = self.progress.count(squares, &setup.adjustment) else {
            return Ok(Committed::Skipped);
        };
        let moved = self.each(
            setup,
            gradients,
            &|state, parameter, gradient| match parameter.var.dtype() {
                DType::F64 => state.update::<R, f64>(setup, parameter, gradient, scale),
                _ => state.update::<R, f32>(setup, parameter, gradient, scale),
            },
        );
        // The checks before an update leave only a panic. Some parameters have changed then.
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
        Ok(state.map(|state| lock(state).snapshot(parameter)))
    }
}
