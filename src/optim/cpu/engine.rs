use std::sync::{Mutex, PoisonError};

use candle_core::backend::BackendDevice;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, DType, Error as CandleError, Result as CandleResult, Storage, Tensor,
};

use super::gradient::Gradient;
use super::lanes::Lanes;
use super::share::{By, CHUNK, SHARED, in_blocks, share, sum, sum_of_squares};
use super::target::{Target, is_shared};
use super::team;
use super::values::ValuesMut;
use super::visit::visit;
use crate::error::{Result, UpdateInterrupted};
use crate::optim::Committed;
use crate::optim::fused::{Adjustment, Counters, Managed, Origin, Snapshot, Update};
use crate::optim::rule::{Kept, Rates, Rule};

/// The state of the parameters, and the passes over them.
#[derive(Debug)]
pub struct Engine {
    states: Vec<State>,
    counters: Counters,
    /// Who updates the small parameters.
    small_by: By,
}

/// The state of one parameter.
#[derive(Debug)]
pub struct State {
    tensors: Vec<CpuStorage>,
    master: Option<CpuStorage>,
    step: u64,
    partials: Vec<f64>,
    scratch: Vec<f64>,
    /// Sum of the gradient's squares, from the last survey.
    squares: f64,
}

/// Small parameters that a thread takes at a time.
const SMALL_AT_A_TIME: usize = 8;

impl Engine {
    pub fn new<R: Rule>(rule: &R, parameters: &[Managed], adjustment: &Adjustment) -> Result<Self> {
        let mut engine = Self {
            states: Vec::new(),
            counters: Counters::new(adjustment),
            small_by: By::Caller,
        };
        let origins = parameters.iter().map(|_| Origin::Fresh).collect();
        engine.set_up(rule, parameters, origins, None)?;
        Ok(engine)
    }

    /// Takes over other parameters, with an origin for each. With an error nothing has changed.
    pub fn set_up<R: Rule>(
        &mut self,
        rule: &R,
        parameters: &[Managed],
        origins: Vec<Origin>,
        counters: Option<Counters>,
    ) -> Result<()> {
        // Everything that can fail comes first.
        let made = parameters.iter().zip(&origins);
        let made = made.map(|(parameter, origin)| match origin {
            Origin::Kept(_) => Ok(None),
            Origin::Fresh => State::new(rule, parameter, None).map(Some),
            Origin::Loaded(saved) => State::new(rule, parameter, Some(saved)).map(Some),
        });
        let made = made.collect::<Result<Vec<_>>>()?;
        let mut old: Vec<_> = self.states.drain(..).map(Some).collect();
        let states = made.into_iter().zip(origins);
        self.states
            .extend(states.filter_map(|(made, origin)| match origin {
                Origin::Kept(index) => old.get_mut(index)?.take(),
                _ => made,
            }));
        self.counters = counters.unwrap_or(self.counters);
        let small = parameters.iter().map(|parameter| parameter.len);
        let small: usize = small.filter(|len| !is_shared(*len)).sum();
        self.small_by = By::Caller;
        // Waking other threads pays only for this many elements.
        if small >= SHARED {
            team::prepare();
            self.small_by = By::Team;
        }
        Ok(())
    }

    pub fn commit<R: Rule>(&mut self, update: &Update<'_, R>) -> Result<Committed> {
        let squares = match update.adjustment.needs_survey() {
            true => Some(self.survey(update)?),
            false => None,
        };
        let Some(scale) = self.counters.count(squares, update.adjustment) else {
            return Ok(Committed::Skipped);
        };
        let moved = self.each(update, &|state, parameter, gradient| {
            let rates = update.rates(parameter.group);
            move_parameter(update, parameter, state, gradient, scale, rates)
        });
        // The checks before an update rule this out. If it happens, some parameters have changed.
        moved.map_err(|error| UpdateInterrupted {
            reason: Some(error.into()),
        })?;
        Ok(Committed::Applied)
    }

    /// The sum of the squares of all gradients as they are; NaN if one of them is not finite.
    fn survey<R: Rule>(&mut self, update: &Update<'_, R>) -> Result<f64> {
        self.each(update, &State::survey)?;
        let surveyed = self.states.iter().zip(update.parameters);
        let surveyed = surveyed.filter(|(_, p)| p.gradient(update.gradients).is_some());
        // `sum` would start at -0.
        Ok(surveyed.fold(0., |total, (state, _)| total + state.squares))
    }

    /// Runs `work` on each parameter that has a gradient: on large ones one by one, each with all of candle's threads, on small ones
    /// with several per thread of the team, since that takes their locks.
    fn each<R: Rule>(
        &mut self,
        update: &Update<'_, R>,
        work: &(impl Fn(&mut State, &Managed, &Tensor) -> CandleResult<()> + Sync),
    ) -> CandleResult<()> {
        let all = |parameters: &[Managed], states: &mut [State]| {
            (parameters.iter().zip(states)).try_for_each(|(parameter, state)| {
                let gradient = parameter.gradient(update.gradients);
                gradient.map_or(Ok(()), |gradient| work(state, parameter, gradient))
            })
        };
        // `Parameters` puts large ones first.
        let large = (update.parameters).partition_point(|parameter| is_shared(parameter.len));
        let (large_parameters, parameters) = update.parameters.split_at(large);
        let (large_states, states) = self.states.split_at_mut(large);
        all(large_parameters, large_states)?;

        let failed: Mutex<Option<CandleError>> = Mutex::new(None);
        let is_whole = share(
            self.small_by,
            parameters.len().div_ceil(SMALL_AT_A_TIME),
            (parameters, states),
            |(parameters, states)| {
                let count = SMALL_AT_A_TIME.min(parameters.len());
                let (some, rest) = parameters.split_at_checked(count)?;
                *parameters = rest;
                Some((some, super::take(states, count)))
            },
            |(parameters, states)| {
                if let Err(error) = all(parameters, states) {
                    let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(error);
                }
            },
        );
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        match failed {
            Some(error) => Err(error),
            None if is_whole => Ok(()),
            None => Err(CandleError::Msg("a thread of the update panicked".to_owned()).bt()),
        }
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub fn snapshot(&self, index: usize, parameter: &Managed) -> Option<Snapshot> {
        let state = self.states.get(index)?;
        let tensor = |storage: &CpuStorage, dims: &[usize]| {
            let storage = Storage::Cpu(storage.clone());
            Tensor::from_storage(storage, dims, BackpropOp::none(), false)
        };
        let kept = state.tensors.iter().zip(&parameter.kept);
        let kept = kept.map(|(storage, (kept, _))| tensor(storage, &kept.dims));
        let master = state.master.as_ref();
        Some(Snapshot {
            step: state.step,
            tensors: kept.collect(),
            master: master.map(|storage| tensor(storage, parameter.var.dims())),
        })
    }
}

impl State {
    /// Saved state, or zeros.
    fn new<R: Rule>(rule: &R, parameter: &Managed, saved: Option<&Snapshot>) -> Result<Self> {
        let (tensors, master) = match saved {
            Some(saved) => (
                saved.tensors.iter().map(storage).collect(),
                saved.master.as_ref().map(storage),
            ),
            None => {
                let zeros = |(kept, dtype): &(Kept, DType)| {
                    CpuDevice.zeros_impl(&kept.dims.clone().into(), *dtype)
                };
                let var = parameter.var.as_detached_tensor();
                let master = (parameter.has_master).then(|| storage(&var.to_dtype(DType::F32)?));
                (parameter.kept.iter().map(zeros).collect(), master)
            }
        };
        let tensors: CandleResult<_> = tensors;
        Ok(Self {
            tensors: tensors?,
            master: master.transpose()?,
            step: saved.map_or(0, |saved| saved.step),
            partials: vec![0.; parameter.len.div_ceil(CHUNK)],
            scratch: vec![0.; rule.scratch(parameter.var.dims())],
            squares: 0.,
        })
    }

    fn survey(&mut self, parameter: &Managed, gradient: &Tensor) -> CandleResult<()> {
        let (storage, layout) = gradient.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            return Err(misplaced());
        };
        let gradient = Gradient::new(storage, layout, 1., f64::INFINITY).ok_or_else(misplaced)?;
        let is_shared = is_shared(parameter.len);
        self.squares = sum(&mut self.partials, parameter.len, is_shared, |range| {
            let (mut total, mut is_finite) = (0., true);
            in_blocks(range, |start, block: &mut [f64]| {
                gradient.load(start, block);
                is_finite &= block
                    .iter()
                    .fold(true, |all, value| all & value.is_finite());
                total += sum_of_squares(block);
            });
            if is_finite { total } else { f64::NAN }
        });
        Ok(())
    }
}

fn move_parameter<R: Rule>(
    update: &Update<'_, R>,
    parameter: &Managed,
    state: &mut State,
    gradient: &Tensor,
    scale: f64,
    rates: Rates,
) -> CandleResult<()> {
    let bound = update.adjustment.bound();
    visit(parameter, gradient, |storage, gradient, layout| {
        let values = |storage| ValuesMut::of(storage).ok_or_else(misplaced);
        let mut parameters = values(storage)?;
        parameters.take(parameter.start);
        let mut kept = state.tensors.iter_mut();
        let mut next = || kept.next().map(values).transpose();
        let lanes = Lanes {
            start: 0,
            parameter: parameters.take(parameter.len),
            gradient: Gradient::new(gradient, layout, scale, bound).ok_or_else(misplaced)?,
            state: [next()?, next()?],
            master: state.master.as_mut().map(values).transpose()?,
        };
        state.step = state.step.saturating_add(1);
        let target = Target {
            lanes,
            dims: parameter.var.dims(),
            partials: &mut state.partials,
            scratch: &mut state.scratch,
            is_shared: is_shared(parameter.len),
        };
        update.rule.apply(rates, state.step, target);
        Ok(())
    })
}

fn storage(tensor: &Tensor) -> CandleResult<CpuStorage> {
    let tensor = tensor.force_contiguous()?;
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(storage.clone()),
        _ => Err(misplaced()),
    }
}

/// An error that the checks before an update rule out.
fn misplaced() -> CandleError {
    CandleError::Msg("the type or device of a gradient or parameter has changed".to_owned()).bt()
}
