use candle_core::Device;

use super::measured::{Measured, ended};
use super::model::MemoryModel;
use super::policy::{at_least_one, taken};
use crate::error::{Error, Result, device_name};
use crate::memory::{DeviceMemory, recover, unmask};

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
/// A trainer and [`process_batches`](crate::process_batches) need no such search: they find the size while they work.
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
        match attempt(memory, &mut model, size, &mut f) {
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
            Err(error) => return Err(unmask(error, device)),
        }
        let last = bad.map_or(limit, |bad| bad - 1);
        size = next(memory, &model, good, bad).min(last);
        if size <= good {
            return Ok(good);
        }
    }
}

fn attempt<T>(
    memory: Option<&DeviceMemory>,
    model: &mut MemoryModel,
    size: usize,
    f: &mut impl FnMut(usize) -> candle_core::Result<T>,
) -> Result<()> {
    // The first call includes what is allocated only once, so that size is measured twice.
    let calls = 1 + usize::from(size == 1 && memory.is_some());
    for _ in 0..calls {
        let measured = Measured::begin(memory);
        match f(size).map_err(Error::from) {
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
