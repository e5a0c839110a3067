use candle_core::Device;

use super::MemoryModel;
use crate::error::{Cause, Error, PolicyError, ResourceExhausted, Result};
use crate::memory::{DeviceMemory, recover, unmask};

/// What is left free of the room, so that what was found holds for the next batch too.
const MARGIN: f64 = 0.01;

/// The largest batch, up to `limit` samples, for which `f` succeeds: for those who only want the number.
///
/// `f` is called with sizes from 1 that double until one runs out of memory, then with sizes between; what it returns is
/// dropped. On a GPU let it wait for the device before it returns, and give the memory by [`find_batch_size_within`]. A
/// trainer and [`process_batches`](crate::process_batches) need no such search: they find the size while they work.
///
/// ```
/// use candle_headroom::{find_batch_size, testing};
///
/// let mut calls = 0;
/// let size = find_batch_size(1024, |size| {
///     calls += 1;
///     if size > 100 { Err(testing::out_of_memory()) } else { Ok(()) }
/// })?;
/// assert_eq!((size, calls), (100, 14));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// [`PolicyError::Zero`] for a limit of 0, any error of `f` that is no exhaustion, at once, and
/// [`ResourceExhausted`] where a single sample does not fit.
pub fn find_batch_size<T>(
    limit: usize,
    mut f: impl FnMut(usize) -> candle_core::Result<T>,
) -> Result<usize> {
    search(limit, &Device::Cpu, between, |size| {
        f(size)?;
        Ok(())
    })
}

/// [`find_batch_size`] under a memory's limit, with few calls: each size follows from what those before it took, with a
/// hundredth of the room left free; for less than a sixteenth more no size is tried. One that goes over a soft limit does
/// not count as fitting.
///
/// ```
/// use candle_headroom::{find_batch_size_within, DeviceMemory};
///
/// let memory = DeviceMemory::host().open()?; // no limit, so all of them fit
/// assert_eq!(find_batch_size_within(&memory, 1024, |_| Ok(()))?, 1024);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// Those of [`find_batch_size`].
pub fn find_batch_size_within<T>(
    memory: &DeviceMemory,
    limit: usize,
    mut f: impl FnMut(usize) -> candle_core::Result<T>,
) -> Result<usize> {
    let model = std::cell::RefCell::new(MemoryModel::new());
    let next = |good: usize, bad: Option<usize>| {
        let model = model.borrow();
        let room = memory.room();
        let room = room.map(|room| (room as f64 * (1. - MARGIN)) as u64);
        let fits = room.and_then(|room| {
            let fits = model.largest_fitting(room).filter(|fits| *fits > good);
            fits.or_else(|| model.next_to_try(room, 1))
        });
        match (bad, fits) {
            _ if room.is_none() || model.largest_seen().is_none() => between(good, bad),
            // One size does not tell what is base.
            (None, None) if model.is_single() => between(good, None),
            (Some(bad), None) if bad - good > good / 16 + 1 => between(good, Some(bad)),
            (_, None) => good,
            (None, Some(fits)) => fits,
            // It was wrong once, so each call is to leave at most three quarters of what is open.
            (Some(bad), Some(fits)) => {
                fits.clamp(good + (bad - good) / 4, between(good, Some(bad)))
            }
        }
    };
    // What is allocated once would count for the first size.
    let mut is_first = true;
    search(limit, memory.device(), next, |size| {
        for _ in 0..1 + usize::from(std::mem::take(&mut is_first)) {
            let scope = memory.peak_scope();
            drop(f(size)?);
            if let (Some(start), Some(peak)) = (scope.start(), scope.peak()) {
                let mut model = model.borrow_mut();
                model.observe(size, peak.saturating_sub(start))?;
            }
            memory.check(&scope).map_err(Error::ResourceExhausted)?;
        }
        Ok(())
    })
}

/// Half of the way to what has failed, or twice as much.
fn between(good: usize, bad: Option<usize>) -> usize {
    match bad {
        Some(bad) => good + (bad - good) / 2,
        None => good.saturating_mul(2),
    }
}

/// Tries sizes until the next one is known to be as good as the last, or to fail.
fn search(
    limit: usize,
    device: &Device,
    next: impl Fn(usize, Option<usize>) -> usize,
    mut attempt: impl FnMut(usize) -> Result<()>,
) -> Result<usize> {
    if limit == 0 {
        let what = "the largest batch to look for";
        return Err(PolicyError::Zero { what }.into());
    }
    let (mut good, mut bad, mut size) = (0, None, 1);
    loop {
        match attempt(size) {
            Ok(()) => good = size,
            Err(Error::ResourceExhausted(exhausted)) => {
                recover(device)?;
                if size == 1 {
                    return Err(never_fits(*exhausted));
                }
                bad = Some(size);
            }
            Err(error) => return Err(unmask(error, device)),
        }
        let last = bad.map_or(limit, |bad| bad - 1);
        size = next(good, bad).min(last);
        if size <= good {
            return Ok(good);
        }
    }
}

fn never_fits(mut exhausted: ResourceExhausted) -> Error {
    // What others took may be given back, so that is no verdict on the sample.
    if exhausted.cause != Cause::Neighbour {
        exhausted.cause = Cause::NeverFits;
    }
    exhausted.micro_batch = Some(1);
    Error::ResourceExhausted(Box::new(exhausted))
}
