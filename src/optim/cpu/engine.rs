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
use crate::optim::fused::{Adjustment, Counters, Managed, Snapshot, Update};
use crate::optim::rule::Rule;

/// All that is kept for the parameters, and the passes over them.
#[derive(Debug)]
pub struct Engine {
    states: Vec<State>,
    counters: Counters,
    /// Who moves the small parameters.
    small_by: By,
}

/// What is kept for one parameter.
#[derive(Debug)]
pub struct State {
    tensors: Vec<CpuStorage>,
    master: Option<CpuStorage>,
    step: u64,
    partials: Vec<f64>,
    scratch: Vec<f64>,
    /// Of the gradient's squares, by the last survey.
    squares: f64,
}

/// Small parameters that a thread takes at a time.
const SMALL_AT_A_TIME: usize = 8;

impl Engine {
    pub fn new<R: Rule>(rule: &R, parameters: &[Managed], adjustment: &Adjustment) -> Result<Self> {
        let states = parameters.iter().map(|parameter| {
            let zeros = |(kept, dtype): &(crate::optim::rule::Kept, DType)| {
                CpuDevice.zeros_impl(&kept.dims.clone().into(), *dtype)
            };
            Ok(State {
                tensors: parameter
                    .kept
                    .iter()
                    .map(zeros)
                    .collect::<CandleResult<_>>()?,
                master: master(parameter)?,
                step: 0,
                partials: vec![0.; parameter.len.div_ceil(CHUNK)],
                scratch: vec![0.; rule.scratch(parameter.var.dims())],
                squares: 0.,
            })
        });
        let small = parameters.iter().map(|parameter| parameter.len);
        let small: usize = small.filter(|len| !is_shared(*len)).sum();
        // Together they have to be worth waking somebody up.
        let small_by = match small >= SHARED {
            true => By::Team,
            false => By::Caller,
        };
        if small_by == By::Team {
            team::prepare();
        }
        Ok(Self {
            states: states.collect::<Result<_>>()?,
            counters: Counters::new(adjustment),
            small_by,
        })
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
        // The checks before an update leave nothing that could fail here. If something does, parameters have moved.
        moved.map_err::<crate::error::Error, _>(|error| {
            let reason = Some(error.into());
            UpdateInterrupted { reason }.into()
        })?;
        Ok(Committed::Applied)
    }

    /// The sum of all gradients' squares as they are; not a number where one of them is not finite.
    fn survey<R: Rule>(&mut self, update: &Update<'_, R>) -> Result<f64> {
        self.each(update, &|state, parameter, gradient| {
            state.survey(parameter, gradient)
        })?;
        let surveyed = self.states.iter().zip(update.parameters);
        let surveyed = surveyed.filter(|(_, parameter)| update.gradient(parameter).is_some());
        // Not `sum`, which begins at -0.
        Ok(surveyed.fold(0., |total, (state, _)| total + state.squares))
    }

    /// Does the same to each parameter that has a gradient: to large ones in turn, each by all of candle's threads, to small ones by
    /// several per thread of the team's, since that takes their locks.
    fn each<R: Rule>(
        &mut self,
        update: &Update<'_, R>,
        work: &(impl Fn(&mut State, &Managed, &Tensor) -> CandleResult<()> + Sync),
    ) -> CandleResult<()> {
        let all = |parameters: &[Managed], states: &mut [State]| {
            (parameters.iter().zip(states)).try_for_each(|(parameter, state)| {
                let gradient = update.gradient(parameter);
                gradient.map_or(Ok(()), |gradient| work(state, parameter, gradient))
            })
        };
        // The builder puts them first.
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
        Some(Snapshot {
            step: state.step,
            tensors: kept
                .map(|(storage, (kept, _))| tensor(storage, &kept.dims))
                .collect(),
            master: (state.master.as_ref()).map(|storage| tensor(storage, parameter.var.dims())),
        })
    }

    /// Goes on from here. The snapshots' tensors have the types and sizes that are kept, as the caller has checked.
    pub fn restore(&mut self, snapshots: Vec<Snapshot>, counters: Counters) -> Result<()> {
        let storages = snapshots.iter().map(|snapshot| {
            let tensors = snapshot.tensors.iter().map(storage);
            let master = snapshot.master.as_ref().map(storage).transpose()?;
            Ok((tensors.collect::<CandleResult<Vec<_>>>()?, master))
        });
        let storages = storages.collect::<CandleResult<Vec<_>>>()?;
        for ((state, snapshot), (tensors, master)) in
            self.states.iter_mut().zip(snapshots).zip(storages)
        {
            state.step = snapshot.step;
            state.tensors = tensors;
            state.master = master;
        }
        self.counters = counters;
        Ok(())
    }
}

impl State {
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
    rates: crate::optim::rule::Rates,
) -> CandleResult<()> {
    let bound = update.adjustment.bound();
    visit(parameter, gradient, |storage, gradient, layout| {
        let unknown = |_| misplaced();
        let mut values = ValuesMut::of(storage).map_err(unknown)?;
        values.take(parameter.start);
        let mut kept = state.tensors.iter_mut();
        let mut next = || kept.next().map(ValuesMut::of).transpose().map_err(unknown);
        let lanes = Lanes {
            start: 0,
            parameter: values.take(parameter.len),
            gradient: Gradient::new(gradient, layout, scale, bound).ok_or_else(misplaced)?,
            state: [next()?, next()?],
            master: (state.master.as_mut())
                .map(ValuesMut::of)
                .transpose()
                .map_err(unknown)?,
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

fn master(parameter: &Managed) -> Result<Option<CpuStorage>> {
    if !parameter.has_master {
        return Ok(None);
    }
    let master = parameter.var.as_detached_tensor().to_dtype(DType::F32)?;
    Ok(Some(storage(&master)?))
}

fn storage(tensor: &Tensor) -> CandleResult<CpuStorage> {
    let tensor = tensor.force_contiguous()?;
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(storage.clone()),
        _ => Err(misplaced()),
    }
}

/// What the checks before an update rule out.
fn misplaced() -> CandleError {
    CandleError::Msg("a gradient or parameter is of another type or device than it was".to_owned())
        .bt()
}
