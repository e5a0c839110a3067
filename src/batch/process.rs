use std::sync::Arc;

use candle_core::Device;

use super::attempt::{Attempt, Failure, Held};
use super::engine::{Engine, Processed};
use super::observer::{MicroBatch, Observer, Task};
use super::policy::{BatchPolicy, Extent, at_least_one};
use super::position::{Origin, waited};
use super::predictive::Predictive;
use super::recompute::Plan;
use super::slices::Batch;
use crate::error::{Phase, Result};
use crate::memory::DeviceMemory;

/// Runs `f` over all samples of `inputs` in order, at most `size` at a time, and returns the results in order: none for 0 samples, such as
/// the [share](crate::distributed::Group::share) of a rank that gets none.
///
/// A chunk that does not fit is computed again in smaller chunks; finished chunks are kept, and each sample's result comes
/// exactly once. [`BatchProcessor`] remembers the size from call to call, follows a memory limit, and reports.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::process_batches;
///
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
/// let sums = process_batches(&x, 4, |chunk| chunk.sum_all()?.to_scalar::<f32>())?;
/// assert_eq!(sums, [6., 22., 17.]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// - inputs that cannot be cut ([`is_batch`](crate::Error::is_batch)), or a size of 0 ([`is_policy`](crate::Error::is_policy)), before anything
///   runs;
/// - [`ResourceExhausted`](crate::ResourceExhausted) if a single sample does not fit; its `samples` say which one;
/// - any other error of `f`, at once and unchanged.
///
/// An error drops the results so far. To keep them, let `f` store them as its last act.
pub fn process_batches<'b, B: Batch + ?Sized, T>(
    inputs: &'b B,
    size: usize,
    mut f: impl FnMut(B::Slice<'b>) -> candle_core::Result<T>,
) -> Result<Vec<T>> {
    at_least_one("the chunk size", size)?;
    let policy = Predictive::builder().at_most(size).build()?;
    let mut processor = BatchProcessor::builder(policy).build();
    Ok(processor.process(inputs, |chunk, _| f(chunk))?.results)
}

/// [`process_batches`] with a policy, a memory limit and a report. It keeps the size that it found for the next call.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::batch::{BatchProcessor, Halving};
///
/// let mut processor = BatchProcessor::builder(Halving::default()).build();
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
/// // A model with room for 3 samples only.
/// let sizes = processor.process(&x, |chunk, _| {
///     if chunk.dim(0)? > 3 {
///         candle_core::bail!("CUDA_ERROR_OUT_OF_MEMORY")
///     }
///     chunk.dim(0)
/// })?;
/// assert_eq!(sizes.results, [2, 2, 2, 2, 2]);
/// assert_eq!(sizes.retries, 2); // 10, then 5, did not fit
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
pub struct BatchProcessor(Engine);

/// Options of a [`BatchProcessor`], made by [`BatchProcessor::builder`].
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct BatchProcessorBuilder(Engine);

impl BatchProcessorBuilder {
    /// Follows this memory's limit, and completes exhaustions with its numbers.
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.0.memory = Some(memory.clone());
        self
    }

    /// Adds an observer.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.0.observers.push(Arc::new(observer));
        self
    }

    /// Returns the processor.
    pub fn build(mut self) -> BatchProcessor {
        self.0.start(Device::Cpu);
        BatchProcessor(self.0)
    }
}

impl BatchProcessor {
    /// Cuts inputs by this policy.
    pub fn builder(policy: impl Into<Box<dyn BatchPolicy>>) -> BatchProcessorBuilder {
        BatchProcessorBuilder(Engine::new(policy, Task::Processing))
    }

    /// Runs `f` over all samples of `inputs`, as [`process_batches`] does.
    ///
    /// # Errors
    /// As [`process_batches`], and [`ResourceExhausted`](crate::ResourceExhausted) if one sample goes over a soft limit.
    pub fn process<'b, B: Batch + ?Sized, T>(
        &mut self,
        inputs: &'b B,
        mut f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<Processed<T>> {
        // `f` may move inputs from the host to the memory's device.
        let memory = self.0.memory.as_ref();
        let device = inputs.device().filter(|device| !device.is_cpu());
        let device = device.or_else(|| Some(memory?.device().clone()));
        self.0.device = device.unwrap_or(Device::Cpu);
        let chunk = |attempt: &Attempt<'_>| attempt.forward(|range| inputs.slice(range), &mut f);
        let (extent, origins) = (inputs.extent()?, inputs.origins());
        self.0.process(extent, &origins, chunk, Held::default)
    }

    /// Returns the policy's plan; `None` for a policy without one.
    pub fn plan(&self) -> Option<Plan> {
        self.0.policy.plan()
    }

    /// Returns what the policy has learned, for [`load_state`](Self::load_state) in another run; `None` if it keeps nothing.
    pub fn state(&self) -> Option<String> {
        self.0.policy.state()
    }

    /// Continues from what another run has learned.
    ///
    /// # Errors
    /// For state that this policy has not saved ([`is_policy`](crate::Error::is_policy)). Nothing changes then.
    pub fn load_state(&mut self, state: &str) -> Result<()> {
        self.0.policy.load_state(state)
    }
}

impl Engine {
    /// Runs `f` for chunks of a batch from these loaders, beside what is `held`.
    pub(crate) fn process<T>(
        &mut self,
        extent: Extent,
        origins: &[Origin<'_>],
        mut f: impl FnMut(&Attempt<'_>) -> Result<T>,
        held: impl Fn() -> Held,
    ) -> Result<Processed<T>> {
        if extent.samples == 0 {
            return Ok(Processed::empty());
        }
        let chunk = |attempt: &Attempt<'_>| -> Result<T, Failure> {
            let result = f(attempt)?;
            if attempt.micro.samples.len() == 1 {
                // A larger chunk that went over the limit is kept and the next one is smaller; this one cannot be.
                attempt.memory.check(Phase::Forward)?;
            }
            Ok(result)
        };
        let (step, waited) = (self.batches, waited(origins));
        let (processed, done) = self.batch(step, extent.samples, waited, |engine, processed| {
            engine.run(extent, &mut (chunk, held), processed)
        });
        self.batches += u64::from(done.is_ok());
        done.map(|()| processed)
    }
}
