use std::sync::Arc;

use candle_core::Device;

use super::attempt::{Attempt, Failure, Held};
use super::engine::{Engine, Processed};
use super::event::{MicroBatch, Observer, Task};
use super::measured::{Measured, ended};
use super::model::MemoryModel;
use super::policy::{BatchPolicy, Extent, at_least_one, taken};
use super::position::{Origin, waited};
use super::predictive::Predictive;
use super::recompute::Plan;
use super::slices::Batch;
use crate::error::{Error, Phase, Result, device_name};
use crate::memory::{DeviceMemory, recover, unmask};

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
///
/// ```
/// use candle_headroom::batch::BatchProcessor;
/// use candle_headroom::{DeviceMemory, Predictive, Timeline};
///
/// let memory = DeviceMemory::host().open()?;
/// let builder = BatchProcessor::builder(Predictive::default());
/// let processor = builder.memory(&memory).observer(Timeline::new()).build();
/// assert!(processor.plan().is_some());
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "call `build()`"]
pub struct BatchProcessorBuilder(Engine);

impl BatchProcessorBuilder {
    /// Follows this memory's limit, and completes exhaustions with its numbers.
    ///
    /// ```
    /// use candle_core::Tensor;
    /// use candle_headroom::batch::BatchProcessor;
    /// use candle_headroom::{DeviceMemory, Predictive};
    ///
    /// let memory = DeviceMemory::host().open()?; // or `cuda(0)`, with a limit
    /// let mut processor = BatchProcessor::builder(Predictive::default()).memory(&memory).build();
    /// let x = Tensor::arange(0f32, 10., memory.device())?;
    /// let done = processor.process(&x, |chunk, _| chunk.dim(0))?;
    /// assert_eq!(done.results.iter().sum::<usize>(), 10);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.0.memory = Some(memory.clone());
        self
    }

    /// Adds an observer.
    ///
    /// Several calls add up.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    ///
    /// use candle_headroom::batch::{BatchProcessor, EventKind, Fixed, Observer, Samples, TrainingEvent};
    ///
    /// #[derive(Debug, Default)]
    /// struct Chunks(AtomicUsize);
    ///
    /// impl Observer for Chunks {
    ///     fn observe(&self, event: &TrainingEvent<'_>) {
    ///         if let EventKind::MicroBatchEnded { .. } = event.kind {
    ///             self.0.fetch_add(1, Relaxed);
    ///         }
    ///     }
    /// }
    ///
    /// let chunks = Arc::new(Chunks::default());
    /// let builder = BatchProcessor::builder(Fixed::new(2)?).observer(Arc::clone(&chunks));
    /// builder.build().process(&Samples(&["one", "two", "three"]), |_, _| Ok(()))?;
    /// assert_eq!(chunks.0.load(Relaxed), 2);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.0.observers.push(Arc::new(observer));
        self
    }

    /// Returns the processor.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchProcessor, Fixed};
    ///
    /// let processor = BatchProcessor::builder(Fixed::new(4)?).build();
    /// assert!(processor.plan().is_none()); // a fixed size has no plan
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn build(mut self) -> BatchProcessor {
        self.0.start(Device::Cpu);
        BatchProcessor(self.0)
    }
}

impl BatchProcessor {
    /// Cuts inputs by this policy.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchProcessor, Fixed, Samples};
    ///
    /// let mut processor = BatchProcessor::builder(Fixed::new(2)?).build();
    /// let done = processor.process(&Samples(&[1, 2, 3, 4, 5]), |chunk, _| Ok(chunk.len()))?;
    /// assert_eq!(done.results, [2, 2, 1]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn builder(policy: impl Into<Box<dyn BatchPolicy>>) -> BatchProcessorBuilder {
        BatchProcessorBuilder(Engine::new(policy, Task::Processing))
    }

    /// Runs `f` over all samples of `inputs`, as [`process_batches`] does.
    ///
    /// `f` receives a chunk and its [`MicroBatch`], whose [`samples`](MicroBatch::samples) are the chunk's positions in `inputs`. A chunk that did not
    /// fit is given to it again in smaller ones.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchProcessor, Fixed, Samples};
    ///
    /// let mut processor = BatchProcessor::builder(Fixed::new(2)?).build();
    /// let texts = Samples(&["one", "two", "three"]);
    /// let done = processor.process(&texts, |chunk, micro| Ok((micro.samples.start, chunk.concat())))?;
    /// assert_eq!(done.results, [(0, "onetwo".to_owned()), (2, "three".to_owned())]);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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
    ///
    /// ```
    /// use candle_headroom::Predictive;
    /// use candle_headroom::batch::BatchProcessor;
    ///
    /// let processor = BatchProcessor::builder(Predictive::builder().at_most(64).build()?).build();
    /// let plan = processor.plan().expect("a policy that predicts");
    /// assert_eq!(plan.to_string(), "using 64: no larger one is allowed");
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn plan(&self) -> Option<Plan> {
        self.0.plan()
    }

    /// Returns what the policy has learned, for [`load_state`](Self::load_state) in another run; `None` if it keeps nothing.
    ///
    /// ```
    /// use candle_headroom::Predictive;
    /// use candle_headroom::batch::{BatchProcessor, Samples};
    ///
    /// let mut processor = BatchProcessor::builder(Predictive::default()).build();
    /// processor.process(&Samples(&[1, 2, 3]), |_, _| Ok(()))?;
    /// let state = processor.state().expect("what it has learned");
    ///
    /// let mut next = BatchProcessor::builder(Predictive::default()).build(); // in another run
    /// next.load_state(&state)?;
    /// assert_eq!(next.state(), Some(state));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn state(&self) -> Option<String> {
        self.0.policy.state()
    }

    /// Continues from what another run has learned.
    ///
    /// ```
    /// use candle_headroom::batch::{BatchProcessor, Fixed};
    ///
    /// let mut processor = BatchProcessor::builder(Fixed::new(4)?).build();
    /// assert!(processor.state().is_none()); // a fixed size learns nothing
    /// assert!(processor.load_state("{}").unwrap_err().is_policy());
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
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

/// Part of the room that is left free, so that the size also fits the next batch.
const MARGIN: f64 = 0.01;

/// Finds the largest batch size up to `limit` for which `f` succeeds; its results are dropped.
///
/// `f` works on `device`, which is made ready for another attempt where memory ran out, as [`recover`] does.
/// Without a memory, `f` is called with sizes that double from 1 until one runs out of memory, then with sizes in between.
/// With a memory, each size follows from what the sizes before it took, which needs fewer calls: 1 % of the room is left free,
/// a size that goes over a soft limit does not count as fitting, and the search ends when at most a sixteenth more could fit.
/// On a GPU, let `f` synchronize the device before it returns.
///
/// A trainer and [`process_batches`] need no such search: they find the size while they work.
///
/// ```
/// use candle_core::Device;
/// use candle_headroom::{DeviceMemory, batch::find_batch_size, testing};
///
/// let mut calls = 0;
/// let size = find_batch_size(&Device::Cpu, None, 1024, |size| {
///     calls += 1;
///     if size > 100 { Err(testing::out_of_memory()) } else { Ok(()) }
/// })?;
/// assert_eq!((size, calls), (100, 14));
///
/// let memory = DeviceMemory::host().open()?; // no limit, so every size fits
/// assert_eq!(find_batch_size(memory.device(), Some(&memory), 1024, |_| Ok(()))?, 1024);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// A limit of 0 ([`is_policy`](crate::Error::is_policy)), [`ResourceExhausted`](crate::ResourceExhausted) if a single sample does not fit, with the
/// memory's numbers and who else uses it, and any other error of `f`, at once.
pub fn find_batch_size<T>(
    device: &Device,
    memory: Option<&DeviceMemory>,
    limit: usize,
    mut f: impl FnMut(usize) -> candle_core::Result<T>,
) -> Result<usize> {
    at_least_one("the largest batch size to try", limit)?;
    let mut model = MemoryModel::new();
    let (mut good, mut bad, mut size) = (0, None, 1);
    loop {
        match attempt(device, memory, &mut model, size, &mut f) {
            Ok(()) => good = size,
            Err(Error::ResourceExhausted(mut exhausted)) => {
                recover(device)?;
                if size == 1 {
                    exhausted.micro_batch = Some(1);
                    (exhausted.device).get_or_insert_with(|| device_name(device.location()));
                    return Err(ended(exhausted, false, Vec::new(), memory));
                }
                bad = Some(size);
            }
            Err(error) => return Err(error),
        }
        let last = bad.map_or(limit, |bad| bad - 1);
        size = next(memory, &model, good, bad).min(last);
        if size <= good {
            return Ok(good);
        }
    }
}

fn attempt<T>(
    device: &Device,
    memory: Option<&DeviceMemory>,
    model: &mut MemoryModel,
    size: usize,
    f: &mut impl FnMut(usize) -> candle_core::Result<T>,
) -> Result<()> {
    // The first call includes what is allocated only once, so that size is measured twice.
    let calls = 1 + usize::from(size == 1 && memory.is_some());
    for _ in 0..calls {
        let measured = Measured::begin(memory);
        match f(size).map_err(|error| unmask(error.into(), device)) {
            Ok(result) => drop(result),
            Err(Error::ResourceExhausted(found)) => {
                let exhausted = measured.exhausted(found, None, None);
                return Err(Error::ResourceExhausted(exhausted));
            }
            Err(error) => return Err(error),
        }
        if let Some(bytes) = taken(measured.peak(), measured.start()) {
            model.observe(size, bytes);
        }
        measured.check(None)?;
    }
    Ok(())
}

/// The size to try next, between the largest that fits and the smallest that does not; `good` ends the search.
fn next(
    memory: Option<&DeviceMemory>,
    model: &MemoryModel,
    good: usize,
    bad: Option<usize>,
) -> usize {
    let middle = match bad {
        Some(bad) => good + (bad - good) / 2,
        None => good.saturating_mul(2),
    };
    let (Some(room), Some(_)) = (memory.and_then(DeviceMemory::room), model.largest_seen()) else {
        return middle;
    };
    let room = (room as f64 * (1. - MARGIN)) as u64;
    let fits = model.largest_fitting(room).filter(|fits| *fits > good);
    match (bad, fits.or_else(|| model.next_to_try(room, 1))) {
        // One size does not tell the base from the slope.
        (None, None) if model.is_single() => middle,
        (Some(bad), None) if bad - good > good / 16 + 1 => middle,
        (_, None) => good,
        (None, Some(fits)) => fits,
        // The model was wrong once, so each call leaves at most three quarters of the open range.
        (Some(bad), Some(fits)) => fits.clamp(good + (bad - good) / 4, middle),
    }
}
