//! Failures at every call: the right batches or a typed error, and nothing leaks.

use std::fmt::Debug;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_headroom::data::{Loaded, Loader};
use candle_headroom::error::{Phase, Resource};
use candle_headroom::{DeviceMemory, Error};
use parking_lot::Mutex;
use tracing::field::Field;
use tracing::{Level, Metadata, span};

use super::{Held, compare, held, leaked, samples};
use crate::gpu::simulated;
use crate::simulator::Simulator;

const ORDINAL: usize = 7;
const OUT_OF_MEMORY: u32 = 2;
const ECC: u32 = 214;
/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: u32 = 999;

struct Bench {
    simulator: Simulator,
    memory: DeviceMemory,
    expected: Vec<Loaded<Vec<Tensor>>>,
    before: Held,
}

impl Bench {
    fn new(simulator: Simulator) -> Self {
        let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
        let expected: Result<_, _> = samples(24).batch(4).build().unwrap().collect();
        simulator.reset_counters();
        Self {
            simulator,
            expected: expected.unwrap(),
            before: held(simulator),
            memory,
        }
    }

    fn loader(&self, workers: usize) -> Result<Loader<Vec<Tensor>>, Error> {
        let builder = samples(24).batch(4).device(self.memory.device());
        builder.workers(workers).ahead(2).build()
    }

    /// Takes all batches, and asks again after an error that `is_expected`. Returns the number of errors, or the first other error.
    fn take_all(
        &self,
        loader: &mut Loader<Vec<Tensor>>,
        is_expected: impl Fn(&Error) -> bool,
    ) -> Result<usize, Error> {
        let (mut errors, mut count) = (0, 0);
        loop {
            let position = loader.state().clone();
            match loader.next() {
                None => break,
                Some(Ok(batch)) => {
                    let expected = &self.expected[count];
                    assert_eq!(batch.indices, expected.indices);
                    compare(&batch, expected, self.memory.device())?;
                    count += 1;
                }
                Some(Err(error)) if is_expected(&error) => {
                    assert_eq!(*loader.state(), position);
                    errors += 1;
                    assert!(errors < 100, "{error}");
                }
                Some(Err(error)) => return Err(error),
            }
        }
        assert_eq!(count, self.expected.len());
        Ok(errors)
    }

    /// Returns the bytes that were not given back.
    fn clean_up(&self) -> u64 {
        self.simulator.disarm();
        self.simulator.clear_fault();
        let leaked = leaked(self.simulator, &self.before);
        // Collects the errors that drops have left.
        context(&self.memory).check_err().ok();
        leaked
    }
}

/// The warnings of this crate.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("candle_headroom") && *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut |_: &Field, value: &dyn Debug| text += &format!("{value:?} "));
        self.0.lock().push(text);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn context(memory: &DeviceMemory) -> Arc<candle_core::cuda_backend::cudarc::driver::CudaContext> {
    let Device::Cuda(device) = memory.device() else {
        panic!("a CUDA device")
    };
    device.cuda_stream().context().clone()
}

#[test]
fn the_device_is_lost_at_every_call() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let bench = Bench::new(simulator);
    let (mut points, mut errors, mut leaked) = (0, 0, 0);
    for late in [false, true] {
        simulator.set_late(late);
        for workers in [0, 1] {
            for nth in 1.. {
                simulator.fault_at_call(nth, ECC);
                let outcome = bench
                    .loader(workers)
                    .and_then(|mut loader| bench.take_all(&mut loader, |_| false));
                let is_lost = simulator.counters().lost_context != 0;
                leaked += bench.clean_up();
                match outcome {
                    // It may be lost only when a tensor or the loader is dropped.
                    Ok(_) => {}
                    Err(Error::DeviceFault(fault)) => {
                        assert_eq!(fault.code, ECC, "at {nth}");
                        errors += 1;
                    }
                    Err(error) => panic!("{error} at {nth}"),
                }
                if !is_lost {
                    break;
                }
                points += 1;
            }
        }
    }
    simulator.set_late(false);
    assert!(points > 1000 && errors > points / 2, "{errors} of {points}");
    assert_eq!((leaked, simulator.counters().hazards), (0, 0));
    println!("figure: data/fault_points_tested = {points} points");
}

#[test]
fn memory_runs_out_at_every_allocation() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let bench = Bench::new(simulator);
    let exhausted = |error: &Error| {
        error.resource_exhausted().is_some_and(|exhausted| {
            exhausted.phase == Some(Phase::Transfer)
                && exhausted.resource == Resource::DeviceMemory
                && !exhausted.remedies.is_empty()
        })
    };
    let mut seen = 0;
    for workers in [0, 1] {
        // Once, so that the same batch fits when it is asked for, and often.
        for times in [1, 3] {
            let before = simulator.counters().allocations;
            let mut loader = bench.loader(workers).unwrap();
            bench.take_all(&mut loader, exhausted).unwrap();
            drop(loader);
            let allocations = simulator.counters().allocations - before;
            assert!(allocations >= 15 * 6, "{allocations}");
            for nth in 1..=allocations {
                let mut loader = bench.loader(workers).unwrap();
                simulator.fail_allocation(nth, times);
                seen += bench.take_all(&mut loader, exhausted).unwrap();
                drop(loader);
                assert_eq!(bench.clean_up(), 0);
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert_eq!(simulator.counters().hazards, 0);
}

#[test]
fn pinned_memory_and_events_run_out() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let bench = Bench::new(simulator);
    for workers in [0, 1, 2] {
        for nth in 1..=6 {
            for times in [1, 1000] {
                for what in [Simulator::fail_host_allocation, Simulator::fail_events] {
                    let mut loader = bench.loader(workers).unwrap();
                    what(simulator, nth, times);
                    let errors = bench.take_all(&mut loader, |_| false);
                    assert_eq!(errors.unwrap(), 0);
                    drop(loader);
                    assert_eq!(bench.clean_up(), 0);
                }
            }
        }
    }
    assert_eq!(simulator.counters().hazards, 0);
}

/// Without pinned memory for any batch there is one warning, with a remedy.
#[test]
fn exhausted_pinned_memory_is_logged_once() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let bench = Bench::new(simulator);
    let warnings = Warnings::default();
    let seen = warnings.clone();
    // With a single subscriber, `tracing` would cache that another test's thread has no interest in an event.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    tracing::subscriber::with_default(warnings, || {
        // Batches are made on this thread.
        let mut loader = bench.loader(0).unwrap();
        simulator.fail_host_allocation(1, u64::MAX);
        assert_eq!(bench.take_all(&mut loader, |_| false).unwrap(), 0);
    });
    assert_eq!(bench.clean_up(), 0);
    let seen = seen.0.lock();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].contains("pinned host memory") && seen[0].contains("fewer batches"));
}

#[test]
fn every_copy_fails() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let bench = Bench::new(simulator);
    let mut seen = 0;
    for late in [false, true] {
        simulator.set_late(late);
        for (status, times) in [(UNKNOWN, 1), (UNKNOWN, 3), (OUT_OF_MEMORY, 2)] {
            let expected = |error: &Error| match status {
                OUT_OF_MEMORY => error.resource_exhausted().is_some(),
                _ => matches!(error, Error::Candle(_)),
            };
            // Batches are compared, which copies them down, only after all have been taken.
            for nth in 1..=6 * 14 {
                let mut loader = bench.loader(1).unwrap();
                simulator.fail_work(nth, times, status);
                let mut batches = Vec::new();
                loop {
                    match loader.next() {
                        None => break,
                        Some(Ok(batch)) => batches.push(batch),
                        Some(Err(error)) => {
                            assert!(expected(&error), "{error}");
                            seen += 1;
                        }
                    }
                }
                simulator.disarm();
                assert_eq!(batches.len(), bench.expected.len());
                for (batch, expected) in batches.iter().zip(&bench.expected) {
                    compare(batch, expected, bench.memory.device()).unwrap();
                }
                drop((batches, loader));
                assert_eq!(bench.clean_up(), 0);
            }
        }
    }
    simulator.set_late(false);
    assert!(seen > 100, "{seen}");
    assert_eq!(simulator.counters().hazards, 0);
}
