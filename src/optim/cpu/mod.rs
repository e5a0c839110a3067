//! One pass over each parameter on the CPU, without a temporary or an allocation. candle's threads share each large parameter; this crate's
//! team shares the small ones. Sums are added in one order, whatever the number of threads.

#[allow(unsafe_code, reason = "AVX2")]
mod lanes;
mod numbers;
#[allow(unsafe_code, reason = "lends a closure to threads that outlive it")]
mod share;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use candle_core::backend::BackendDevice;
use candle_core::backprop::GradStore;
use candle_core::cpu_backend::CpuDevice;
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, DType, Device, Error as CandleError, InplaceOp2, Layout, Result as CandleResult,
    Storage, Tensor,
};

pub use lanes::Elementwise;
pub use numbers::{CHUNK, Column, Gradient, Real, reals};
#[cfg(feature = "cuda")]
pub use share::sum_of_chunks;
pub use share::{in_blocks, in_stretches, is_shared};

use super::Committed;
use super::fused::{
    self, Engine as _, Halves, Loaded, Managed, Progress, Setup, Snapshot, misplaced, states,
};
use super::rule::Rule;
use crate::error::{Result, UpdateInterrupted};
use crate::mix::seed;
use lanes::Lanes;
use numbers::take;
use share::{SHARED, lock, prepare, squares, together};

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
        } else if !together(&small) {
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
        self.states = states(setup, loaded, &self.states, State::locked)?;
        self.progress = loaded.map_or(self.progress, |loaded| loaded.progress);
        let small = setup.updated().map(Managed::owned);
        let small: Vec<_> = small.filter(|len| !is_shared(*len)).collect();
        // Waking other threads pays only for this many elements, and not for a few parameters.
        self.has_team = small.len() > FEW && small.iter().sum::<usize>() >= SHARED;
        if self.has_team {
            prepare();
        }
        Ok(())
    }

    fn measure(&mut self, setup: &Setup<R>, gradients: &GradStore) -> Result<f64> {
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
        moved.map_err(UpdateInterrupted::with)?;
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

/// The state of a parameter.
#[derive(Debug)]
pub struct State {
    step: u64,
    tensors: Vec<CpuStorage>,
    partials: Vec<f64>,
    /// Sum of the gradient's squares, from the last survey; NaN if it is not finite.
    pub squares: f64,
}

impl State {
    pub fn locked(parameter: &Managed, saved: Option<&Snapshot>) -> Result<Arc<Mutex<Self>>> {
        let new = Snapshot::new(parameter, saved, &Device::Cpu)?;
        let tensors = new.tensors.iter().enumerate().map(|(index, tensor)| {
            if saved.is_none() && index < parameter.by_rule().len() {
                // Not copied: the system provides zeroed memory only when it is first written.
                return CpuDevice.zeros_impl(tensor.shape(), tensor.dtype());
            }
            let (storage, _) = tensor.storage_and_layout();
            match &*storage {
                Storage::Cpu(storage) => Ok(storage.clone()),
                _ => Err(misplaced()),
            }
        });
        Ok(Arc::new(Mutex::new(Self {
            step: new.step,
            tensors: tensors.collect::<CandleResult<_>>()?,
            partials: vec![0.; parameter.len.div_ceil(CHUNK)],
            squares: 0.,
        })))
    }

    pub fn snapshot(&self, parameter: &Managed) -> Snapshot {
        let tensors = self.tensors.iter().zip(&parameter.kept);
        let tensors = tensors.map(|(storage, held)| {
            let storage = Storage::Cpu(storage.clone());
            Tensor::from_storage(storage, held.dims(), BackpropOp::none(), false)
        });
        Snapshot {
            step: self.step,
            tensors: tensors.collect(),
        }
    }

    pub fn survey<C: Real>(&mut self, parameter: &Managed, gradient: &Tensor) -> CandleResult<()> {
        self.squares = add_squares::<C>(0., &mut self.partials, parameter, gradient)?;
        Ok(())
    }

    /// Updates the parameter with `scale` times its gradient.
    pub fn update<R: Rule, C: Real>(
        &mut self,
        setup: &Setup<R>,
        parameter: &Managed,
        gradient: &Tensor,
        scale: f64,
    ) -> CandleResult<()> {
        let mut work = |storage: &mut CpuStorage, gradient: &CpuStorage, layout: &Layout| {
            let mut values = Column::<C>::of(storage).ok_or_else(misplaced)?;
            let mut end = values.take(parameter.start).len();
            let by_rule = parameter.by_rule();
            let tensors = self.tensors.split_at_mut_checked(by_rule.len());
            let (moments, master) = tensors.ok_or_else(misplaced)?;
            let mut moments = moments.iter_mut().zip(by_rule);
            let mut next = || match moments.next() {
                Some((storage, held)) => Column::held(storage, held.form).ok_or_else(misplaced),
                None => Ok(Column::default()),
            };
            let master = master.first_mut();
            let master = master.map(|master| reals(master).ok_or_else(misplaced));
            let (mut state, mut master) = ([next()?, next()?], master.transpose()?);
            let bound = setup.adjustment.bound();
            let gradient = Gradient::new(gradient, layout, scale, bound)?;
            let step = self.step.saturating_add(1);
            self.step = step;
            let rule = setup.rule.step(setup.rates(parameter), step);
            for range in &parameter.ranges {
                let start = parameter.start + range.start;
                values.take(start - end);
                end = start + range.len();
                let lanes = Lanes::<C> {
                    start: range.start,
                    seed: seed(step, parameter.stream),
                    is_noisy: setup.halves == Halves::Stochastic,
                    parameter: values.take(range.len()),
                    gradient,
                    state: state.each_mut().map(|column| column.take(range.len())),
                    master: master.as_mut().map(|master| take(master, range.len())),
                };
                lanes.update(&rule);
            }
            Ok(())
        };
        let visit = Visit(Cell::new(Some(&mut work)));
        parameter.handle.inplace_op2(gradient, &visit)
    }
}

/// Adds the squares of a gradient's elements to `total`, range after range; NaN if one is not finite.
pub fn add_squares<C: Real>(
    total: f64,
    partials: &mut [f64],
    parameter: &Managed,
    gradient: &Tensor,
) -> CandleResult<f64> {
    let (storage, layout) = gradient.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return Err(misplaced());
    };
    let gradient = Gradient::<C>::new(storage, layout, 1., f64::INFINITY)?;
    Ok(parameter.ranges.iter().fold(total, |total, range| {
        let sum = squares(partials, range.len(), &|start, block: &mut [C]| {
            gradient.load(range.start + start, block);
            // The square of a finite f64 may be infinite.
            let finite = block.iter().map(|value| value.to_f64().is_finite());
            if !finite.fold(true, |all, one| all & one) {
                block.fill(C::from_f64(f64::NAN));
            }
        });
        total + sum
    }))
}

/// What is done with the storage of a parameter and that of its gradient.
type Work<'a> = dyn FnMut(&mut CpuStorage, &CpuStorage, &Layout) -> CandleResult<()> + 'a;

/// An operation that passes both to its work, once.
struct Visit<'a>(Cell<Option<&'a mut Work<'a>>>);

impl InplaceOp2 for Visit<'_> {
    fn name(&self) -> &'static str {
        "fused-update"
    }

    fn cpu_fwd(
        &self,
        parameter: &mut CpuStorage,
        _: &Layout,
        gradient: &CpuStorage,
        layout: &Layout,
    ) -> CandleResult<()> {
        let work = self.0.take();
        work.map_or(Ok(()), |work| work(parameter, gradient, layout))
    }
}
