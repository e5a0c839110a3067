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
    pub fn in_phase(phase: Phase, point: usize) -> Self {
        Self {
            phase: Some(phase),
            ..Self::at(point)
        }
    }

    /// Fails this rank's update after the exchange of gradients with this index, when the other ranks have the sum too. Exchanges are not
    /// among the points of [`at`](Self::at) and [`in_phase`](Self::in_phase).
    pub fn after_exchange(exchange: usize) -> Self {
        Self {
            is_after_exchange: true,
            ..Self::at(exchange)
        }
    }

    /// Fails this many consecutive points instead of one.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Fails with this error instead of [`out_of_memory`].
    pub fn failing_with(self, error: fn() -> candle_core::Error) -> Self {
        Self { error, ..self }
    }

    /// Arms the faults on this thread until the guard is dropped, in place of any others.
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
#[derive(Debug)]
#[must_use = "dropping it disarms the faults"]
pub struct ArmedFaults(Rc<Plan>);

impl ArmedFaults {
    /// Number of points that failed so far.
    pub fn fired(&self) -> usize {
        self.0.passed.fired.load(Relaxed)
    }

    /// Number of points passed so far, in all phases.
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
pub fn out_of_memory() -> candle_core::Error {
    driver_error("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")")
}

/// The error of candle's CUDA backend after a kernel has read an invalid address: a sticky fault.
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
