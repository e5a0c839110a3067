use candle_core::Device;

use super::exhaustion::conclude;
use super::model::MemoryModel;
use crate::error::{Cause, Error, PolicyError, Result};
use crate::memory::{DeviceMemory, recover, unmask};

/// Part of the room that is left free, so that the size also fits the next batch.
const MARGIN: f64 = 0.01;

/// Finds the largest batch size up to `limit` for which `f` succeeds.
///
/// `f` is called with sizes from 1 that double until one runs out of memory, then with sizes in between; its results are
/// dropped. On a GPU, let `f` synchronize the device before it returns, and use [`find_batch_size_within`]. A trainer and
/// [`process_batches`](crate::process_batches) need no such search: they find the size while they work.
///
/// ```
/// use candle_headroom::batch::find_batch_size;
/// use candle_headroom::testing;
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
/// [`PolicyError::Zero`] for a limit of 0, [`ResourceExhausted`](crate::ResourceExhausted) if a single sample does not fit,
/// and any other error of `f`, at once.
pub fn find_batch_size<T>(
    limit: usize,
    mut f: impl FnMut(usize) -> candle_core::Result<T>,
) -> Result<usize> {
    search(limit, &Device::Cpu, between, |size| {
        f(size)?;
        Ok(())
    })
}

/// Finds the largest batch size within a memory's limit, in few calls.
///
/// Each size follows from what the sizes before it took, with 1 % of the room left free. The search ends when at most a
/// sixteenth more could fit. A size that goes over a soft limit does not count as fitting.
///
/// ```
/// use candle_headroom::batch::find_batch_size_within;
/// use candle_headroom::DeviceMemory;
///
/// let memory = DeviceMemory::host().open()?; // no limit, so every size fits
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
            // One size does not tell the base from the slope.
            (None, None) if model.is_single() => between(good, None),
            (Some(bad), None) if bad - good > good / 16 + 1 => between(good, Some(bad)),
            (_, None) => good,
            (None, Some(fits)) => fits,
            // The model was wrong once, so each call leaves at most three quarters of the open range.
            (Some(bad), Some(fits)) => {
                fits.clamp(good + (bad - good) / 4, between(good, Some(bad)))
            }
        }
    };
    // The first call of `f` includes what is allocated only once.
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

/// Returns the middle of the range that is open, or twice the size that succeeded.
fn between(good: usize, bad: Option<usize>) -> usize {
    match bad {
        Some(bad) => good + (bad - good) / 2,
        None => good.saturating_mul(2),
    }
}

/// Tries sizes until `next` finds none to try.
fn search(
    limit: usize,
    device: &Device,
    next: impl Fn(usize, Option<usize>) -> usize,
    mut attempt: impl FnMut(usize) -> Result<()>,
) -> Result<usize> {
    if limit == 0 {
        let what = "the largest batch size to try";
        return Err(PolicyError::Zero { what }.into());
    }
    let (mut good, mut bad, mut size) = (0, None, 1);
    loop {
        match attempt(size) {
            Ok(()) => good = size,
            Err(Error::ResourceExhausted(mut exhausted)) => {
                recover(device)?;
                if size == 1 {
                    exhausted.micro_batch = Some(1);
                    let is_passing = exhausted.cause == Cause::Neighbour;
                    conclude(&mut exhausted, is_passing, None, Vec::new());
                    return Err(Error::ResourceExhausted(exhausted));
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
