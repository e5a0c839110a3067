//! How other libraries find a batch size, rewritten from their sources: Composer 0.32.1, Accelerate 1.15.0, Lightning 2.6.6.

use crate::curves::Device;
use crate::tally::{Step, Tally};

/// Composer's `device_train_microbatch_size="auto"`: starts with the whole batch, halves a size that does not fit, and runs the
/// whole batch again. It never grows.
pub fn composer(mut device: Device, steps: usize) -> Tally {
    let total = device.curve.batch;
    let (mut size, mut tally) = (total, Tally::default());
    for _ in 0..steps {
        let mut step = Step::default();
        while step.finished < total {
            let next = size.min(total - step.finished);
            step.computed += next;
            match device.run(next) {
                Some(_) => {
                    step.finished += next;
                    step.largest = step.largest.max(next);
                }
                None => {
                    step.failures += 1;
                    size = (size / 2).max(1);
                    (step.finished, step.largest) = (0, 0);
                }
            }
        }
        tally.push(step, &device);
        device.step += 1;
    }
    tally
}

/// Accelerate's `find_executable_batch_size`: calls the training function again from its start with nine tenths of the batch
/// size, which is also the size of an update. It never grows.
pub fn accelerate(mut device: Device, steps: usize) -> Tally {
    let needed = steps * device.curve.batch;
    let (mut size, mut tally) = (device.curve.batch, Tally::new_batch());
    let (mut computed, mut failures) = (0, 0);
    'function: loop {
        let (mut done, mut step) = (0, Step::default());
        tally.restart();
        device.lost += device.step;
        device.step = 0;
        while done < needed {
            let next = size.min(needed - done);
            computed += next;
            if device.run(next).is_none() {
                failures += 1;
                size = ((size as f64 * 0.9) as usize).max(1);
                continue 'function;
            }
            done += next;
            step.finished += next;
            step.largest = step.largest.max(next);
            // One step is as many samples as the global batch has.
            while device.step < done / device.curve.batch {
                tally.push(std::mem::take(&mut step), &device);
                device.step += 1;
            }
        }
        tally.charge(computed, failures);
        return tally;
    }
}

/// What Lightning's `BatchSizeFinder` does after the first failure.
#[derive(Clone, Copy, PartialEq)]
pub enum Search {
    Power,
    Binary,
}

/// Lightning's `BatchSizeFinder`: before training it doubles the size from 2 on until one fails, with three steps of each. Then
/// it uses the size before, or bisects and uses 5 % less. A failure during training ends the training with an error, so no step
/// counts from then on.
pub fn lightning(mut device: Device, steps: usize, search: Search) -> Tally {
    const TRIAL_STEPS: usize = 3;
    const MARGIN: f64 = 0.05;
    let total = device.curve.batch;
    let needed = steps * total;
    let mut tally = Tally::new_batch();
    let (mut computed, mut failures) = (0, 0);
    let mut tries = |device: &mut Device, size: usize| {
        (0..TRIAL_STEPS).all(|_| {
            computed += size;
            device.run(size).is_some()
        })
    };
    let (mut good, mut bad) = (1, None);
    let mut size = 2;
    while bad.is_none() && size <= total {
        match tries(&mut device, size) {
            true => good = size,
            false => bad = Some(size),
        }
        size *= 2;
    }
    failures += usize::from(bad.is_some());
    if let (Search::Binary, Some(mut bad)) = (search, bad) {
        while bad - good > 1 {
            let middle = (bad + good) / 2;
            match tries(&mut device, middle) {
                true => good = middle,
                false => {
                    bad = middle;
                    failures += 1;
                }
            }
        }
        good = ((good as f64 * (1. - MARGIN)) as usize).max(1);
    }
    let (mut done, mut step) = (0, Step::default());
    while done < needed {
        let next = good.min(needed - done);
        computed += next;
        if device.run(next).is_none() {
            failures += 1;
            tally.crash(steps);
            break;
        }
        done += next;
        step.finished += next;
        step.largest = step.largest.max(next);
        while device.step < done / total {
            tally.push(std::mem::take(&mut step), &device);
            device.step += 1;
        }
    }
    tally.charge(computed, failures);
    tally
}
