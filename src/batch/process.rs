use candle_core::Device;

use super::attempt::Attempt;
use super::engine::{Engine, Work};
use super::event::Event;
use super::micro_batch::MicroBatch;
use super::observer::Observer;
use super::observers::{Observers, Watch};
use super::outcome::{Failure, Outcome};
use super::plan::Plan;
use super::policy::BatchPolicy;
use super::predictive::Predictive;
use super::slices::{Batch, extent_of};
use crate::error::{Phase, PolicyError, Result};
use crate::memory::DeviceMemory;

/// Runs `f` over all samples of `inputs` in order, at most `size` at a time, and returns the results in order: for inference
/// and evaluation.
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
/// - [`BatchError`](crate::error::BatchError) or [`PolicyError`] before anything runs;
/// - [`ResourceExhausted`](crate::ResourceExhausted) if a single sample does not fit; its `samples` say which one;
/// - any other error of `f`, at once and unchanged.
///
/// An error drops the results so far. To keep them, let `f` store them as its last act.
pub fn process_batches<'b, B, T>(
    inputs: &'b B,
    size: usize,
    mut f: impl FnMut(B::Slice<'b>) -> candle_core::Result<T>,
) -> Result<Vec<T>>
where
    B: Batch + ?Sized,
{
    if size == 0 {
        let what = "the chunk size";
        return Err(PolicyError::Zero { what }.into());
    }
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
/// let mut processor = BatchProcessor::builder(Halving::from_whole_batch()).build();
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
pub struct BatchProcessor {
    engine: Engine,
    /// Where `f` works, if its inputs may be elsewhere.
    device: Option<Device>,
    batches: u64,
}

/// Options of a [`BatchProcessor`], made by [`BatchProcessor::builder`].
///
/// ```
/// use candle_headroom::batch::BatchProcessor;
/// use candle_headroom::{DeviceMemory, Predictive};
///
/// let memory = DeviceMemory::host().open()?;
/// let processor = BatchProcessor::builder(Predictive::new()).memory(&memory).build();
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct BatchProcessorBuilder {
    processor: BatchProcessor,
}

/// The results of [`BatchProcessor::process`].
///
/// ```
/// use candle_headroom::batch::{BatchProcessor, Fixed, Samples};
///
/// let samples = [1, 2, 3, 4, 5];
/// let mut processor = BatchProcessor::builder(Fixed::new(2)?).build();
/// let processed = processor.process(&Samples(&samples), |chunk, _| Ok(chunk.to_vec()))?;
/// assert_eq!((processed.sizes, processed.retries), (vec![2, 2, 1], 0));
/// assert_eq!(processed.results.concat(), samples);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Processed<T> {
    /// One result for each finished chunk, in the order of the samples.
    pub results: Vec<T>,
    /// Sizes of the chunks, in samples.
    pub sizes: Vec<usize>,
    /// Number of chunks that did not fit and were computed again.
    pub retries: usize,
    /// Number of samples that were computed again.
    pub recomputed: usize,
    /// Changes of the size, and retries.
    pub events: Vec<Event>,
    /// The highest use of memory, in bytes; `None` if it is not counted.
    pub peak: Option<u64>,
}

impl BatchProcessor {
    /// Cuts inputs by this policy.
    pub fn builder(policy: impl BatchPolicy + 'static) -> BatchProcessorBuilder {
        let engine = Engine::new(Box::new(policy), Device::Cpu, Observers::default());
        BatchProcessorBuilder {
            processor: Self::from_engine(engine, None),
        }
    }

    pub(crate) fn from_engine(engine: Engine, device: Option<Device>) -> Self {
        Self {
            engine,
            device,
            batches: 0,
        }
    }

    pub(crate) fn policy_mut(&mut self) -> &mut Box<dyn BatchPolicy> {
        &mut self.engine.policy
    }

    pub(crate) fn has_run(&self) -> bool {
        self.batches > 0
    }

    /// Returns the policy's plan; `None` for a policy without one.
    pub fn plan(&self) -> Option<Plan> {
        self.engine.policy.plan()
    }

    /// Returns what the policy has learned, for [`load_state`](Self::load_state) in another run; `None` if it keeps nothing.
    pub fn state(&self) -> Option<String> {
        self.engine.policy.state()
    }

    /// Continues from what another run has learned.
    ///
    /// # Errors
    /// [`PolicyError::Saved`] for state that this policy has not saved. Nothing changes then.
    pub fn load_state(&mut self, state: &str) -> Result<()> {
        self.engine.policy.load_state(state)
    }

    /// Runs `f` over all samples of `inputs`, as [`process_batches`] does.
    ///
    /// # Errors
    /// As [`process_batches`], and [`ResourceExhausted`](crate::ResourceExhausted) if a chunk of one sample goes over a soft
    /// limit.
    pub fn process<'b, B, T>(
        &mut self,
        inputs: &'b B,
        f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<Processed<T>>
    where
        B: Batch + ?Sized,
    {
        let extent = extent_of(inputs)?;
        let engine = &mut self.engine;
        let memory = engine.memory.clone();
        // `f` may move inputs from the host to the memory's device.
        engine.device = (self.device.clone())
            .or_else(|| inputs.device().filter(|device| !device.is_cpu()))
            .or_else(|| Some(memory.as_ref()?.device().clone()))
            .unwrap_or(Device::Cpu);
        let step = self.batches;
        let watch = Watch::begin(&engine.observers, memory.as_ref(), step, extent.samples);
        let mut chunks = Chunks {
            inputs,
            f,
            results: Vec::new(),
        };
        let run = engine.run(step, extent, &mut chunks);
        let plan = engine.observers.plan(&*engine.policy);
        let outcome = run.inspect_err(|error| watch.failed(&engine.observers, error, plan))?;
        watch.ended(
            &engine.observers,
            memory.as_ref(),
            &outcome,
            plan,
            Some(false),
        );
        self.batches += 1;
        let Outcome {
            sizes,
            retries,
            recomputed,
            events,
        } = outcome;
        Ok(Processed {
            results: chunks.results,
            sizes,
            retries,
            recomputed,
            events,
            peak: watch.peak(),
        })
    }
}

impl BatchProcessorBuilder {
    /// Follows this memory's limit, and completes exhaustions with its numbers.
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.processor.engine.use_memory(memory);
        self
    }

    /// Adds an observer.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.processor.engine.observers.add(observer);
        self
    }

    /// Returns the processor.
    pub fn build(self) -> BatchProcessor {
        self.processor
    }
}

struct Chunks<'b, B: ?Sized, F, T> {
    inputs: &'b B,
    f: F,
    results: Vec<T>,
}

impl<'b, B, F, T> Work for Chunks<'b, B, F, T>
where
    B: Batch + ?Sized,
    F: FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<T>,
{
    fn micro_batch(&mut self, attempt: &Attempt<'_>) -> Result<(), Failure> {
        let samples = attempt.micro.samples.clone();
        let is_smallest = samples.len() == 1;
        let chunk = attempt.run(Phase::Transfer, || self.inputs.slice(samples))?;
        let result = attempt.run(Phase::Forward, || (self.f)(chunk, &attempt.micro))?;
        if is_smallest {
            // A larger chunk that went over the limit is kept and the next one is smaller; this one cannot be.
            attempt.check(Phase::Forward)?;
        }
        self.results.push(result);
        Ok(())
    }
}
