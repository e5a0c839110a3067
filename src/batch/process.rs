use candle_core::Device;

use super::slices::extent_of;
use super::{
    Batch, BatchPolicy, Drive, Event, Failure, MicroBatch, Observer, Observers, Outcome, Plan,
    Predictive, Proven, Watch, run_phase,
};
use crate::error::{Phase, PolicyError, Result};
use crate::memory::DeviceMemory;

/// Runs `f` over all samples of `inputs` in order, `size` at a time or fewer where that does not fit, each sample's result
/// exactly once: for inference and evaluation.
///
/// What was finished before a failure is kept, and only the failed chunk is computed again, smaller. The results come back in
/// order, one for each chunk. [`BatchProcessor`] remembers the size from call to call, follows a memory limit, and reports.
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
/// A [`BatchError`](crate::BatchError) or [`PolicyError`](crate::PolicyError) before anything is run, any error of `f` at once
/// and unchanged, and [`ResourceExhausted`](crate::ResourceExhausted) where a single sample does not fit; its `samples` say how
/// far the work came. With an error the results so far are dropped: let `f` put them away itself, as its last act, to keep them.
pub fn process_batches<'b, B, T>(
    inputs: &'b B,
    size: usize,
    mut f: impl FnMut(B::Slice<'b>) -> candle_core::Result<T>,
) -> Result<Vec<T>>
where
    B: Batch + ?Sized,
{
    if size == 0 {
        let what = "a chunk's size";
        return Err(PolicyError::Zero { what }.into());
    }
    let mut processor = BatchProcessor::new(Predictive::builder().at_most(size).build()?);
    Ok(processor.process(inputs, |chunk, _| f(chunk))?.results)
}

/// [`process_batches`] with a policy, a memory limit and a report; it keeps the size it found for the next call.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::{BatchProcessor, Halving};
///
/// let x = Tensor::arange(0f32, 10., &Device::Cpu)?;
/// let mut processor = BatchProcessor::new(Halving::from_whole_batch());
/// // A model that has room for 3 samples only.
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
    policy: Box<dyn BatchPolicy>,
    memory: Option<DeviceMemory>,
    /// Where `f` works, if its inputs may lie elsewhere.
    device: Option<Device>,
    batches: u64,
    proven: Proven,
    observers: Observers,
}

/// What [`BatchProcessor::process`] did.
///
/// ```
/// use candle_headroom::{BatchProcessor, Fixed};
///
/// let samples = [1, 2, 3, 4, 5];
/// let processed = BatchProcessor::new(Fixed::new(2)?).process(&samples[..], |chunk, _| Ok(chunk.to_vec()))?;
/// assert_eq!((processed.sizes, processed.retries), (vec![2, 2, 1], 0));
/// assert_eq!(processed.results.concat(), samples);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Processed<T> {
    /// The results, one for each finished chunk, in the order of the samples.
    pub results: Vec<T>,
    /// The chunks' sizes, in samples.
    pub sizes: Vec<usize>,
    /// How many chunks did not fit and were computed again.
    pub retries: usize,
    /// How many samples were computed again.
    pub recomputed: usize,
    /// What happened to the size.
    pub events: Vec<Event>,
    /// The highest use of memory meanwhile, in bytes; `None` where nobody counts.
    pub peak: Option<u64>,
}

impl BatchProcessor {
    /// Cuts by this policy.
    pub fn new(policy: impl BatchPolicy + 'static) -> Self {
        Self {
            policy: Box::new(policy),
            memory: None,
            device: None,
            batches: 0,
            proven: Proven::default(),
            observers: Observers::default(),
        }
    }

    /// Follows this memory's limit and fills exhaustions with its numbers.
    pub fn memory(mut self, memory: &DeviceMemory) -> Self {
        self.memory = Some(memory.clone());
        self.policy.prepare(&memory.surroundings());
        self
    }

    pub(crate) fn on(mut self, device: &Device) -> Self {
        self.device = Some(device.clone());
        self
    }

    /// Tells those observers, and no others.
    pub(crate) fn observers(mut self, observers: Observers) -> Self {
        self.observers = observers;
        self
    }

    pub(crate) fn has_run(&self) -> bool {
        self.batches > 0
    }

    /// What its policy believes and why; `None` for a policy that does not tell.
    pub fn plan(&self) -> Option<Plan> {
        self.policy.plan()
    }

    /// Returns what its policy has learned, for [`load_state`](Self::load_state) in another run; `None` if it keeps nothing.
    pub fn state(&self) -> Option<String> {
        self.policy.state()
    }

    /// Continues from the [`state`](Self::state) of another run.
    ///
    /// # Errors
    /// [`PolicyError::Saved`] if `state` is not a state of this policy; nothing has changed then.
    pub fn load_state(&mut self, state: &str) -> Result<()> {
        self.policy.load_state(state)
    }

    /// Tells `observer` what happens; several may be given.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observers.add(observer);
        self
    }

    /// Runs `f` over all samples of `inputs`, as [`process_batches`] does.
    ///
    /// # Errors
    /// As [`process_batches`], and where a chunk of one sample goes over a soft limit.
    pub fn process<'b, B, T>(
        &mut self,
        inputs: &'b B,
        mut f: impl FnMut(B::Slice<'b>, &MicroBatch) -> candle_core::Result<T>,
    ) -> Result<Processed<T>>
    where
        B: Batch + ?Sized,
    {
        let extent = extent_of(inputs)?;
        let mut results = Vec::new();
        // Inputs on the host may be moved to the memory's device by `f`.
        let device = (self.device.clone())
            .or_else(|| inputs.device().filter(|device| !device.is_cpu()))
            .or_else(|| Some(self.memory.as_ref()?.device().clone()))
            .unwrap_or(Device::Cpu);
        let scope = self.memory.as_ref().map(DeviceMemory::peak_scope);
        let watch = Watch::begin(
            &self.observers,
            self.memory.as_ref(),
            self.batches,
            extent.samples,
        );
        let mut drive = Drive {
            policy: &mut *self.policy,
            memory: self.memory.as_ref(),
            device: &device,
            step: self.batches,
            base_seed: 0,
            proven: &mut self.proven,
            observers: &self.observers,
        };
        let run = drive.run(extent, |attempt| {
            let chunk = attempt.phase(Phase::Transfer, || {
                run_phase(Phase::Transfer, || {
                    inputs.slice(attempt.micro.samples.clone())
                })
            })?;
            let result = attempt.phase(Phase::Forward, || {
                run_phase(Phase::Forward, || f(chunk, &attempt.micro))
            })?;
            if attempt.micro.samples.len() == 1 {
                // No smaller chunk can follow, so going over the limit is final here.
                attempt
                    .check()
                    .map_err(|error| error.in_phase(Phase::Forward))?;
            }
            results.push(result);
            Ok::<_, Failure>(())
        });
        let plan = self.observers.plan(&*self.policy);
        let outcome = run.inspect_err(|error| watch.failed(error, plan))?;
        let peak = scope.and_then(|scope| scope.peak());
        watch.ended(&outcome, peak, plan, false);
        self.batches += 1;
        let Outcome {
            sizes,
            retries,
            recomputed,
            events,
        } = outcome;
        Ok(Processed {
            results,
            sizes,
            retries,
            recomputed,
            events,
            peak,
        })
    }
}
