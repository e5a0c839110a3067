use std::cell::RefCell;
use std::marker::PhantomData;

use crate::error::Phase;

thread_local! {
    static ARMED: RefCell<Option<Plan>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Plan {
    id: u64,
    faults: Faults,
    /// Points passed in all phases, points passed in the chosen phase, and failed points.
    points: usize,
    matching: usize,
    fired: usize,
}

/// The points that fail, and their error; see the [module](crate::testing).
///
/// ```
/// use candle_headroom::testing::{Faults, illegal_address};
///
/// // The 6th point and the two after it fail with a sticky fault.
/// let armed = Faults::at(5).times(3).failing_with(illegal_address).arm();
/// drop(armed); // disarmed
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "call `arm()`"]
pub struct Faults {
    phase: Option<Phase>,
    first: usize,
    times: usize,
    error: fn() -> candle_core::Error,
}

impl Faults {
    /// Fails the point with this index, counted from 0 over all phases since arming.
    pub fn at(point: usize) -> Self {
        Self {
            phase: None,
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
        ARMED.with_borrow_mut(|armed| {
            let id = armed.as_ref().map_or(0, |plan| plan.id + 1);
            *armed = Some(Plan {
                id,
                faults: self,
                points: 0,
                matching: 0,
                fired: 0,
            });
            ArmedFaults {
                id,
                thread_bound: PhantomData,
            }
        })
    }
}

/// Faults armed on this thread, until dropped or until others are armed.
///
/// ```
/// use candle_headroom::testing::{Faults, probe};
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::new(1f32, &Device::Cpu)?;
/// let armed = Faults::at(1).arm();
/// assert!(probe(&x).is_ok() && probe(&x).is_err() && probe(&x).is_ok());
/// assert_eq!((armed.points(), armed.fired()), (3, 1));
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it disarms the faults"]
pub struct ArmedFaults {
    /// Tells this guard's plan from one that has replaced it.
    id: u64,
    thread_bound: PhantomData<*const ()>,
}

impl ArmedFaults {
    /// Number of points that failed so far.
    pub fn fired(&self) -> usize {
        self.read(|plan| plan.fired)
    }

    /// Number of points passed so far, in all phases.
    pub fn points(&self) -> usize {
        self.read(|plan| plan.points)
    }

    fn read(&self, field: impl Fn(&Plan) -> usize) -> usize {
        ARMED.with_borrow(|armed| {
            let plan = armed.as_ref().filter(|plan| plan.id == self.id);
            plan.map_or(0, field)
        })
    }
}

impl Drop for ArmedFaults {
    fn drop(&mut self) {
        ARMED.with_borrow_mut(|armed| armed.take_if(|plan| plan.id == self.id));
    }
}

/// A point at which an armed fault can fail.
pub(crate) fn inject(phase: Phase) -> candle_core::Result<()> {
    // The error is created after the borrow ends: creating it may pass a point itself.
    let error = ARMED.with_borrow_mut(|armed| armed.as_mut()?.pass(phase));
    error.map_or(Ok(()), |error| Err(error()))
}

impl Plan {
    fn pass(&mut self, phase: Phase) -> Option<fn() -> candle_core::Error> {
        self.points += 1;
        if self.faults.phase.is_some_and(|chosen| chosen != phase) {
            return None;
        }
        let index = self.matching;
        self.matching += 1;
        let first = self.faults.first;
        if index < first || index - first >= self.faults.times {
            return None;
        }
        self.fired += 1;
        Some(self.faults.error)
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
