//! When copies happen, what is not copied, and loaders that move or end with copies under way.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Tensor};
use candle_headroom::DeviceMemory;
use candle_headroom::data::{Items, Loader, Stream};
use candle_headroom::error::BoxedError;

use super::{compare, held, leaked, samples, wait_for_ready};
use crate::gpu::simulated;

const ORDINAL: usize = 6;
/// Those of a batch that have elements.
const TENSORS: u64 = 14;

/// The copies of a batch are queued when the one before it is handed out, and nothing waits for them.
#[test]
fn a_batch_is_copied_while_the_one_before_it_is_used() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let builder = samples(40).batch(4).device(memory.device());
    let mut loader = builder.workers(1).ahead(3).build().unwrap();
    let first = loader.next().unwrap().unwrap();
    let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
    let bytes: usize = first.iter().map(bytes).sum();
    for _ in 0..6 {
        wait_for_ready(&loader, 3);
        // Whether a batch is pinned, on its way, or neither.
        assert_eq!(loader.stats().ready_bytes, 3 * bytes as u64);
        simulator.reset_counters();
        let ready = loader.next().unwrap().unwrap();
        let counters = simulator.counters();
        assert_eq!(counters.copies % TENSORS, 0);
        // The first batch may have been handed out before the second was ready.
        assert!((1..=2).contains(&(counters.copies / TENSORS)));
        assert_eq!(counters.allocations % 15, 0, "an empty tensor has one too");
        drop(ready);
    }
    wait_for_ready(&loader, 3);
    simulator.reset_counters();
    let batch = loader.next().unwrap().unwrap();
    let counters = simulator.counters();
    assert_eq!(counters.copies, TENSORS, "only the next batch");
    // All batches are read, so no worker waits for page-locked memory either.
    assert_eq!(counters.synchronizations, 0);
    drop((first, batch));
}

#[test]
fn moving_and_ending_with_copies_under_way() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let device = memory.device();
    let expected: Result<Vec<_>, _> = samples(40).batch(4).build().unwrap().collect();
    let expected = expected.unwrap();
    simulator.reset_counters();
    for late in [false, true] {
        for workers in [1, 3] {
            simulator.set_late(late);
            let before = held(simulator);
            let builder = samples(40).batch(4).device(device).workers(workers);
            let mut loader = builder.build().unwrap();
            let begin = loader.state().clone();
            for stop in [1, 3, 2, 5] {
                wait_for_ready_or_first(&loader);
                for expected in &expected[..stop] {
                    let batch = loader.next().unwrap().unwrap();
                    compare(&batch, expected, device).unwrap();
                }
                loader.load_state(&begin).unwrap();
            }
            loader.next().unwrap().unwrap();
            wait_for_ready(&loader, 2);
            loader.next().unwrap().unwrap();
            drop(loader);
            leaked(simulator, &before);
        }
    }
    simulator.set_late(false);
    assert_eq!(simulator.counters().hazards, 0);
}

/// Another thread drops a batch that was not handed out, and never had the device's context.
#[test]
fn a_loader_that_another_thread_drops() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    simulator.reset_counters();
    let before = held(simulator);
    let builder = samples(40).batch(4).device(memory.device());
    let mut loader = builder.build().unwrap();
    drop(loader.next().unwrap().unwrap());
    wait_for_ready(&loader, 2);
    drop(loader.next().unwrap().unwrap());
    assert!(
        held(simulator).bytes > before.bytes,
        "a batch is copied ahead"
    );
    std::thread::spawn(move || drop(loader)).join().unwrap();
    leaked(simulator, &before);
    assert_eq!(simulator.counters().hazards, 0);
}

/// Tensors that are on the device stay, beside others that are not.
#[test]
fn what_is_on_the_device_stays() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    let there = Tensor::arange(0_f32, 8., memory.device()).unwrap();
    let id = there.id();
    let collate = move |samples: Vec<u32>| -> Result<_, BoxedError> {
        Ok((there.clone(), Tensor::new(samples, &Device::Cpu)?))
    };
    let builder = Loader::builder(Items(vec![3_u32, 1, 2]), collate).batch(2);
    let loader = builder.device(memory.device()).build().unwrap();
    simulator.reset_counters();
    let mut all = Vec::new();
    for batch in loader {
        let (stayed, moved) = batch.unwrap().into_inner();
        assert_eq!(stayed.id(), id);
        assert!(moved.device().is_cuda());
        all.extend(moved.to_vec1::<u32>().unwrap());
    }
    assert_eq!(all, [3, 1, 2]);
    // Two up, and two down to compare them.
    assert_eq!(simulator.counters().copies, 4);
}

#[test]
fn streams_go_to_the_device_too() {
    let Some((_gpu, simulator)) = simulated(ORDINAL) else {
        return;
    };
    let memory = DeviceMemory::cuda(ORDINAL).open().unwrap();
    simulator.reset_counters();
    let before = held(simulator);
    let seen = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&seen);
    let source = Stream(move |epoch: u64| Ok((0..7_u32).map(move |i| Ok(i + 10 * epoch as u32))));
    let collate = move |samples: Vec<u32>| -> Result<Tensor, BoxedError> {
        *counted.lock().unwrap() += samples.len();
        Ok(Tensor::new(samples, &Device::Cpu)?.to_dtype(DType::I64)?)
    };
    let builder = Loader::builder(source, collate).batch(3).epochs(2);
    let mut loader = builder.device(memory.device()).build().unwrap();
    let mut epochs = Vec::new();
    for epoch in loader.epochs() {
        let batches = epoch.map(|batch| batch.unwrap().to_vec1::<i64>());
        let batches: Result<Vec<_>, _> = batches.collect();
        epochs.push(batches.unwrap().concat());
    }
    let expected = |epoch: i64| (0..7).map(|i| i + 10 * epoch).collect::<Vec<_>>();
    assert_eq!(epochs, [expected(0), expected(1)]);
    assert_eq!(*seen.lock().unwrap(), 14);
    drop(loader);
    leaked(simulator, &before);
    assert_eq!(simulator.counters().hazards, 0);
}

fn wait_for_ready_or_first(loader: &Loader<Vec<Tensor>>) {
    if loader.stats().batches > 0 {
        wait_for_ready(loader, 1);
    }
}
