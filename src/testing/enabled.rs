use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::error::Phase;

thread_local! {
    static ARMED: RefCell<Option<Rc<Plan>>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Plan {
    faults: Faults,
    passed: Passed,
}

/// The points that were passed since arming.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// Of all kinds.
    pub(super) all: AtomicUsize,
    /// Of the chosen kind.
    matching: AtomicUsize,
    pub(super) fired: AtomicUsize,
}

impl Passed {
    /// Passes a point of the chosen kind. Returns whether it is one of `times` from `first` on.
    pub(super) fn fires(&self, first: usize, times: usize) -> bool {
        let index = self.matching.fetch_add(1, Relaxed);
        let fires = index.checked_sub(first).is_some_and(|later| later < times);
        self.fired.fetch_add(fires.into(), Relaxed);
        fires
    }
}

/// The points that fail, and their error; see the [module](crate::testing).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::process_batches;
/// use candle_headroom::testing::Faults;
///
/// let x = Tensor::arange(0f32, 8., &Device::Cpu)?; // (8,)
/// let sum = || process_batches(&x, 4, |chunk| chunk.sum_all()?.to_scalar::<f32>());
/// let counting = Faults::at(usize::MAX).arm(); // none fails
/// sum()?;
/// let points = counting.points();
/// drop(counting);
/// for point in 0..points {
///     let armed = Faults::at(point).arm();
///     assert_eq!(sum()?.iter().sum::<f32>(), 28.); // each sample once, whatever failed
///     assert_eq!(armed.fired(), 1);
/// }
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "call `arm()`"]
pub struct Faults {
    phase: Option<Phase>,
    /// Exchanges fail, and no phase does.
    is_after_exchange: bool,
    first: usize,
    times: usize,
    error: fn() -> candle_core::Error,
}

impl Faults {
    /// Fails the point with this index, counted from 0 over all phases since arming.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::testing::{Faults, probe};
    ///
    /// let x = Tensor::new(1f32, &Device::Cpu)?;
    /// let _armed = Faults::at(1).arm();
    /// assert!(probe(&x).is_ok());
    /// assert!(probe(&x).is_err()); // the second point
    /// assert!(probe(&x).is_ok());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn at(point: usize) -> Self {
        Self {
            phase: None,
            is_after_exchange: false,
            first: point,
            times: 1,
            error: out_of_memory,
        }
    }

    /// Fails the point with this index within one phase.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::error::Phase;
    /// use candle_headroom::optim::Commit;
    /// use candle_headroom::testing::Faults;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = Sgd::builder(vec![w.clone()]).learning_rate(0.25).build()?;
    /// let gradients = w.sqr()?.backward()?;
    /// let armed = Faults::in_phase(Phase::Optimizer, 0).arm();
    /// let error = optimizer.commit(&gradients).unwrap_err();
    /// assert!(error.resource_exhausted().is_some());
    /// assert_eq!((armed.fired(), w.to_scalar::<f32>()?), (1, 3.)); // nothing has changed
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn in_phase(phase: Phase, point: usize) -> Self {
        Self {
            phase: Some(phase),
            ..Self::at(point)
        }
    }

    /// Fails this rank's update after the exchange of gradients with this index, when the other ranks have the sum too. Exchanges are not
    /// among the points of [`at`](Self::at) and [`in_phase`](Self::in_phase).
    ///
    /// ```
    /// use candle_headroom::distributed::Group;
    /// use candle_headroom::testing::Faults;
    ///
    /// let group = Group::from_environment()?; // here of one
    /// let armed = (group.rank() == 1).then(|| Faults::after_exchange(0).arm());
    /// // … a trainer's step with `.group(&group)`: rank 1 fails in its update …
    /// assert_eq!(armed.is_some(), group.rank() == 1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn after_exchange(exchange: usize) -> Self {
        Self {
            is_after_exchange: true,
            ..Self::at(exchange)
        }
    }

    /// Fails this many consecutive points instead of one.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::testing::{Faults, probe};
    ///
    /// let x = Tensor::new(1f32, &Device::Cpu)?;
    /// let armed = Faults::at(0).times(2).arm();
    /// assert!(probe(&x).is_err() && probe(&x).is_err());
    /// assert!(probe(&x).is_ok());
    /// assert_eq!(armed.fired(), 2);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Fails with this error instead of [`out_of_memory`].
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::process_batches;
    /// use candle_headroom::testing::{Faults, illegal_address};
    ///
    /// let x = Tensor::arange(0f32, 8., &Device::Cpu)?; // (8,)
    /// let armed = Faults::at(0).failing_with(illegal_address).arm();
    /// let error = process_batches(&x, 4, |chunk| chunk.sum_all()).unwrap_err();
    /// assert!(error.device_fault().is_some());
    /// assert_eq!(armed.fired(), 1); // a lost device is not tried again
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn failing_with(self, error: fn() -> candle_core::Error) -> Self {
        Self { error, ..self }
    }

    /// Arms the faults on this thread until the guard is dropped, in place of any others.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::testing::{Faults, probe};
    ///
    /// let x = Tensor::new(1f32, &Device::Cpu)?;
    /// let armed = Faults::at(0).times(usize::MAX).arm(); // memory stays out
    /// assert!(probe(&x).is_err());
    /// drop(armed);
    /// assert!(probe(&x).is_ok());
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn arm(self) -> ArmedFaults {
        let plan = Rc::new(Plan {
            faults: self,
            passed: Passed::default(),
        });
        ARMED.set(Some(Rc::clone(&plan)));
        ArmedFaults(plan)
    }
}

/// Faults armed on this thread, until dropped or until others are armed.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::testing::{Faults, probe};
///
/// let x = Tensor::new(1f32, &Device::Cpu)?;
/// let armed = Faults::at(0).arm();
/// assert!(probe(&x).is_err());
/// assert!(probe(&x).is_ok());
/// assert_eq!((armed.points(), armed.fired()), (2, 1));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it disarms the faults"]
pub struct ArmedFaults(Rc<Plan>);

impl ArmedFaults {
    /// Number of points that failed so far.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::testing::{Faults, probe};
    ///
    /// let x = Tensor::new(1f32, &Device::Cpu)?;
    /// let armed = Faults::at(2).arm();
    /// probe(&x)?;
    /// assert_eq!(armed.fired(), 0); // the code under test has no third point
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn fired(&self) -> usize {
        self.0.passed.fired.load(Relaxed)
    }

    /// Number of points passed so far, in all phases.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use candle_headroom::testing::{Faults, probe};
    ///
    /// let x = Tensor::new(1f32, &Device::Cpu)?;
    /// let counting = Faults::at(usize::MAX).arm(); // none fails
    /// for _ in 0..3 {
    ///     probe(&x)?;
    /// }
    /// assert_eq!(counting.points(), 3);
    /// # Ok::<(), candle_core::Error>(())
    /// ```
    pub fn points(&self) -> usize {
        self.0.passed.all.load(Relaxed)
    }
}

impl Drop for ArmedFaults {
    fn drop(&mut self) {
        ARMED.with_borrow_mut(|armed| armed.take_if(|plan| Rc::ptr_eq(plan, &self.0)));
    }
}

/// A point at which an armed fault can fail.
pub(crate) fn inject(phase: Phase) -> Result<()> {
    let Some(plan) = ARMED.with_borrow(Option::clone) else {
        return Ok(());
    };
    let faults = &plan.faults;
    plan.passed.all.fetch_add(1, Relaxed);
    if faults.is_after_exchange || faults.phase.is_some_and(|chosen| chosen != phase) {
        return Ok(());
    }
    plan.pass()
}

/// The end of an exchange of gradients between ranks, at which an armed fault can fail.
#[cfg(feature = "distributed")]
pub(crate) fn inject_after_exchange() -> Result<()> {
    match ARMED.with_borrow(Option::clone) {
        Some(plan) if plan.faults.is_after_exchange => plan.pass(),
        _ => Ok(()),
    }
}

impl Plan {
    /// Passes a point of the chosen kind.
    fn pass(&self) -> Result<()> {
        match self.passed.fires(self.faults.first, self.faults.times) {
            true => Err((self.faults.error)()),
            false => Ok(()),
        }
    }
}

/// The error of candle's CUDA backend when the driver has no memory left, as far as a build without CUDA can represent it.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom::process_batches;
/// use candle_headroom::testing::out_of_memory;
///
/// let x = Tensor::arange(0f32, 8., &Device::Cpu)?; // (8,)
/// let sums = process_batches(&x, 8, |chunk| match chunk.dim(0)? {
///     0..=4 => chunk.sum_all()?.to_scalar::<f32>(),
///     _ => Err(out_of_memory()), // room for 4
/// })?;
/// assert_eq!(sums.iter().sum::<f32>(), 28.); // each sample once
/// # Ok::<(), candle_headroom::Error>(())
/// ```
pub fn out_of_memory() -> candle_core::Error {
    driver_error("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")")
}

/// The error of candle's CUDA backend after a kernel has read an invalid address: a sticky fault.
///
/// ```
/// use candle_headroom::Error;
/// use candle_headroom::testing::illegal_address;
///
/// let error = Error::from(illegal_address());
/// assert_eq!(error.device_fault().map(|fault| fault.code), Some(700));
/// ```
pub fn illegal_address() -> candle_core::Error {
    driver_error(
        "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")",
    )
}

fn driver_error(text: &str) -> candle_core::Error {
    candle_core::Error::Cuda(text.into()).bt()
}

/// Copies a tensor of any shape: a point in the forward pass of a model and one in its backward pass. CPU only.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::error::Phase;
/// use candle_headroom::testing::{Faults, probe};
///
/// let x = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let _armed = Faults::in_phase(Phase::Backward, 0).arm();
/// let loss = probe(&x.sqr()?)?.sum_all()?;
/// assert!(loss.backward().is_err());
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// The armed fault, or candle's error if `tensor` is on another device.
pub fn probe(tensor: &Tensor) -> Result<Tensor> {
    inject(Phase::Forward)?;
    tensor.force_contiguous()?.apply_op1(Probe)
}

struct Probe;

impl CustomOp1 for Probe {
    fn name(&self) -> &'static str {
        "fault-probe"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        // `force_contiguous` made the storage for this tensor alone.
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        inject(Phase::Backward)?;
        Ok(Some(gradient.clone()))
    }
}
