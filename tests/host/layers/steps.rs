//! Whose step a report is about, where several threads or trainers work.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use candle_headroom::layers::LayerMemory;
use candle_headroom::{DeviceMemory, process_batches};
use tracing::{Dispatch, trace_span};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

use super::{names, watched};
use crate::support::alone;

const MIB: usize = 1 << 20;

fn in_use() -> u64 {
    DeviceMemory::host().open().unwrap().in_use().unwrap()
}

/// A `LayerMemory`, and its subscriber for several threads.
fn installed() -> (LayerMemory, Dispatch) {
    let layers = LayerMemory::new(&DeviceMemory::host().open().unwrap());
    let dispatch = Dispatch::new(registry().with(layers.layer()));
    (layers, dispatch)
}

/// Sets it also where an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_loaders_spans_are_not_a_step() {
    let _alone = alone();
    let (layers, dispatch) = installed();
    let (loads, stops) = (AtomicBool::new(false), AtomicBool::new(false));
    let load = || {
        tracing::dispatcher::with_default(&dispatch, || {
            let sample = trace_span!("sample");
            while !stops.load(Relaxed) {
                // More than the step takes.
                sample.in_scope(|| drop(std::hint::black_box(vec![1u8; 4 * MIB])));
                loads.store(true, Relaxed);
            }
        });
    };
    thread::scope(|threads| {
        let _stop = Stop(&stops);
        threads.spawn(load);
        while !loads.load(Relaxed) {
            thread::yield_now();
        }
        tracing::dispatcher::with_default(&dispatch, || {
            let model = trace_span!("model");
            for _ in 0..3 {
                layers.measure(|| {
                    model.in_scope(|| vec![1u8; MIB]);
                    assert_eq!(names(&layers.report()), ["model"]);
                });
                thread::sleep(Duration::from_millis(5));
                assert_eq!(names(&layers.report()), ["model"]);
            }
        });
    });
}

/// Each call counts its chunks from 0.
#[test]
fn a_second_processing_is_a_step_of_its_own() {
    let _alone = alone();
    watched(|layers| {
        let work = |samples: usize| {
            let inputs = Tensor::ones((samples, MIB / 4), DType::F32, &Device::Cpu).unwrap();
            let outputs = process_batches(&inputs, samples, |chunk| {
                trace_span!("model").in_scope(|| chunk.sqr())
            });
            outputs.unwrap();
            let report = layers.report();
            (report.work.map(|work| work.samples), report.peak)
        };
        let (first, second) = (work(8), work(2));
        assert_eq!((first.0, second.0), (Some(8), Some(2)));
        assert!(first.1 > second.1);
    });
}

#[test]
fn threads_that_have_ended_keep_nothing_but_the_latest_step() {
    let _alone = alone();
    let (layers, dispatch) = installed();
    let run = |work: &(dyn Fn() + Sync)| {
        thread::scope(|threads| {
            let thread = threads.spawn(|| tracing::dispatcher::with_default(&dispatch, work));
            thread.join().unwrap();
        });
    };
    let request = || trace_span!("request").in_scope(|| {});
    (0..50).for_each(|_| run(&request));
    let before = in_use();
    (0..400).for_each(|_| run(&request));
    let more = in_use().saturating_sub(before);
    // One state takes more than 1 KiB.
    assert!(more < 64 * 1024, "{more}");
    run(&|| layers.measure(|| trace_span!("small").in_scope(|| {})));
    run(&request);
    run(&request);
    assert_eq!(names(&layers.report()), ["small"]);
}
