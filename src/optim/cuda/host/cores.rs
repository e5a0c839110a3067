use std::sync::Arc;

use candle_core::backprop::GradStore;
use candle_core::cuda_backend::cudarc::driver::CudaStream;
use candle_core::{CudaDevice, Result as CandleResult};

use super::pinned::Pinned;
use super::staging::Staging;
use crate::error::{Error, Resource, Result};
use crate::memory::SystemMemory;
use crate::optim::cpu::{Memory, Part, update};
use crate::optim::cuda::launch::{Launch, collect};
use crate::optim::cuda::layout::{Arguments, Slot, Staged};
use crate::optim::cuda::state::State;
use crate::optim::fused::{Choice, Managed, Setup, misplaced};
use crate::optim::rule::Rule;
use crate::optim::{Committed, HostUpdate};

/// What updates by the host's cores need besides the state.
#[derive(Debug)]
pub struct Cores {
    stagings: Vec<Option<Arc<Staging>>>,
    /// Copies down what an update reads.
    collect: Option<Launch>,
    /// What the device has decided: the factor on gradients, whether the step is skipped, and the steps of all parameters.
    report: Pinned,
    /// Of the last report.
    scale: f64,
    steps: Vec<u64>,
}

impl Cores {
    /// Shares the room for each parameter with `old`. `None` if no update is by the cores: nothing has moved, the choice is against
    /// them, or there is no room and the choice is free.
    pub fn new<R: Rule>(
        setup: &Setup<R>,
        choice: &mut Choice,
        old: Option<&Self>,
        stream: &Arc<CudaStream>,
    ) -> Result<Option<Self>> {
        let is_moved = |p: &Managed| p.on_host && !setup.is_frozen(p);
        if choice.decided() == HostUpdate::Device || !setup.pieces.iter().any(is_moved) {
            return Ok(None);
        }
        if choice.is_free() && choice.decided() == HostUpdate::Fastest {
            // A system that is out of memory may end the process instead of refusing.
            let needed = setup
                .pieces
                .iter()
                .filter(|p| is_moved(p))
                .map(Staging::needed);
            let (needed, free) = (needed.sum::<u64>(), SystemMemory::read().free());
            if free.is_some_and(|free| needed > free / 2) {
                tracing::info!(
                    needed,
                    free,
                    "not enough memory on the host to try updates by its cores"
                );
                choice.rule_out_cores();
                return Ok(None);
            }
        }
        let room = |(index, parameter): (usize, &Managed)| {
            if !is_moved(parameter) {
                return Ok(None);
            }
            // With another shard the place is another piece's.
            let shared = old.and_then(|old| old.stagings.get(index)?.clone());
            match shared.filter(|staging| staging.fits(parameter)) {
                None => Ok(Some(Arc::new(Staging::new(parameter, stream)?))),
                shared => Ok(shared),
            }
        };
        let stagings: Result<_> = setup.pieces.iter().enumerate().map(room).collect();
        let words = 2 + setup.pieces.len();
        let report = || Pinned::zeros(stream, words * size_of::<u64>());
        match stagings.and_then(|stagings| Ok((stagings, report()?))) {
            Ok((stagings, report)) => Ok(Some(Self {
                stagings,
                collect: None,
                report,
                scale: 1.,
                steps: vec![0; setup.pieces.len()],
            })),
            Err(Error::ResourceExhausted(exhausted))
                if choice.is_free() && exhausted.resource == Resource::PinnedMemory =>
            {
                tracing::info!(
                    "no page-locked memory for updates by the host's cores: {exhausted}"
                );
                choice.rule_out_cores();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes the launch for these slots. Returns where it reports.
    pub fn connect(&mut self, device: &CudaDevice, slots: &[Slot]) -> Result<u64> {
        self.collect = collect(device, slots)?;
        Ok(self.report.address())
    }

    /// The room for a parameter.
    pub fn staged(&self, index: usize) -> Staged {
        let staging = self.stagings.get(index).and_then(Option::as_ref);
        staging.map_or(Staged::default(), |staging| staging.staged())
    }

    pub fn bytes(&self) -> u64 {
        let stagings = self.stagings.iter().flatten();
        stagings.map(|staging| staging.bytes()).sum()
    }

    /// # Safety
    /// As for [`Launch::run`].
    pub unsafe fn collect(&self, stream: &CudaStream, arguments: &Arguments) -> CandleResult<()> {
        match &self.collect {
            // SAFETY: the same contract.
            Some(collect) => unsafe { collect.run(stream, arguments) },
            None => Err(misplaced()),
        }
    }

    /// Waits for what was collected, and computes the new values of parameters.
    pub fn compute_values<R: Rule>(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        states: &mut [Option<State>],
    ) -> Result<Committed> {
        // SAFETY: nothing is launched while it is borrowed.
        let report = unsafe { self.report.read() }?;
        let (words, _) = report.as_chunks();
        let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let mut next = || words.next().ok_or_else(misplaced);
        let (scale, is_skipped) = (f64::from_bits(next()?), next()? != 0);
        self.scale = scale;
        for step in &mut self.steps {
            *step = next()?;
        }
        self.each(setup, gradients, states, true)?;
        Ok(match is_skipped {
            true => Committed::Skipped,
            false => Committed::Applied,
        })
    }

    /// Computes the new state from the same numbers, while the device may still copy the new values.
    pub fn compute_state<R: Rule>(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        states: &mut [Option<State>],
    ) -> CandleResult<()> {
        self.each(setup, gradients, states, false)
    }

    /// Computes the new values or the new state of each parameter that changes.
    fn each<R: Rule>(
        &mut self,
        setup: &Setup<R>,
        gradients: &GradStore,
        states: &mut [Option<State>],
        is_values: bool,
    ) -> CandleResult<()> {
        let stagings = setup.pieces.iter().zip(&mut self.stagings);
        let all = stagings.zip(states).zip(&self.steps);
        for (((parameter, staging), state), &step) in all {
            let gradient = setup.gradient(parameter, gradients);
            let (Some(staging), Some(state), Some(gradient)) = (staging, state, gradient) else {
                continue;
            };
            if step == 0 {
                continue;
            }
            // Only while an engine is built do two share them.
            let staging = Arc::get_mut(staging).ok_or_else(misplaced)?;
            let moments = state.on_host.as_mut().and_then(Arc::get_mut);
            let moments = moments.ok_or_else(misplaced)?;
            let dtype = gradient.dtype();
            // SAFETY: `compute_values` has waited for what was launched before. An update by the cores launches one more kernel since,
            // which uses neither the state that has moved nor the copies, but only the new values.
            let ((copied, values, up), state) = unsafe { (staging.parts(), moments.write()) };
            let copied = copied.get(..parameter.len * dtype.size_in_bytes());
            let memory = Memory {
                gradient: (copied.ok_or_else(misplaced)?, dtype),
                parameter: values,
                state,
            };
            let part = match is_values {
                // SAFETY: it is not launched yet.
                true => Part::Values(unsafe { up.write() }),
                false => Part::State,
            };
            update(setup, parameter, (step, self.scale), memory, part)?;
        }
        Ok(())
    }
}
