//! `LoaderBuilder::device`: the batches of the CPU, in an order of copies without hazards, whatever fails and whoever stops.

mod equality;
mod failures;
mod moves;

use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use candle_headroom::data::{Dataset, Loader, LoaderBuilder};
use candle_headroom::error::BoxedError;

use crate::simulator::Simulator;

/// Samples whose numbers are their tensors' values, with costs that vary.
struct Samples(usize);

impl Dataset for Samples {
    type Sample = u32;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<u32, BoxedError> {
        Ok(u32::try_from(index)?)
    }

    fn cost(&self, index: usize) -> Result<usize, BoxedError> {
        Ok(1 + index * 7919 % 13)
    }
}

/// Tensors of every type, of no dimension, without elements, and with strides and offsets.
fn collate(samples: Vec<u32>) -> Result<Vec<Tensor>, BoxedError> {
    let rows = samples.len();
    let numbers = Tensor::new(samples, &Device::Cpu)?;
    let wide = numbers.reshape((rows, 1))?.repeat((1, 6))?;
    let wide = wide.broadcast_add(&Tensor::arange(0_u32, 6, &Device::Cpu)?)?;
    use DType::{BF16, F8E4M3, F16, F32, F64, I16, I32, I64, U8, U32};
    let types = [U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3];
    let mut tensors = Vec::new();
    for dtype in types {
        tensors.push(wide.to_dtype(dtype)?);
    }
    tensors.push(wide.t()?);
    tensors.push(wide.narrow(1, 2, 3)?);
    tensors.push(numbers.narrow(0, rows / 2, rows - rows / 2)?);
    tensors.push(numbers.to_dtype(F32)?.sum_all()?);
    tensors.push(Tensor::zeros((rows, 0, 3), F32, &Device::Cpu)?);
    Ok(tensors)
}

fn samples(len: usize) -> LoaderBuilder<Samples, Vec<Tensor>> {
    Loader::builder(Samples(len), collate)
}

/// Everything that a tensor holds.
fn content(tensor: &Tensor) -> candle_core::Result<(DType, Vec<usize>, String)> {
    let tensor = tensor.to_device(&Device::Cpu)?.force_contiguous()?;
    let (storage, _) = tensor.storage_and_layout();
    let candle_core::Storage::Cpu(storage) = &*storage else {
        panic!("on the CPU")
    };
    Ok((
        tensor.dtype(),
        tensor.dims().to_vec(),
        format!("{storage:?}"),
    ))
}

/// Compares a batch with the one on the CPU. An error is one of reading it.
fn compare(batch: &[Tensor], expected: &[Tensor], device: &Device) -> candle_core::Result<()> {
    assert_eq!(batch.len(), expected.len());
    for (tensor, expected) in batch.iter().zip(expected) {
        assert!(tensor.device().same_device(device));
        assert_eq!(content(tensor)?, content(expected)?);
    }
    Ok(())
}

/// What a device has given away.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    bytes: u64,
    host_bytes: u64,
    events: u64,
    streams: u64,
}

fn held(simulator: Simulator) -> Held {
    let counters = simulator.counters();
    Held {
        bytes: counters.live_bytes,
        host_bytes: counters.live_host_bytes,
        events: counters.live_events,
        streams: counters.live_streams,
    }
}

/// Waits until the threads of dropped loaders have ended and all is given back. Returns the bytes that are not.
fn leaked(simulator: Simulator, before: &Held) -> u64 {
    let begin = Instant::now();
    while held(simulator) != *before && begin.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(1));
    }
    let now = held(simulator);
    assert_eq!(now, *before);
    now.bytes.abs_diff(before.bytes) + now.host_bytes.abs_diff(before.host_bytes)
}

/// Waits until this many batches are ready.
fn wait_for_ready(loader: &Loader<Vec<Tensor>>, batches: usize) {
    let begin = Instant::now();
    while loader.stats().ready < batches {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "{:?}",
            loader.stats()
        );
        thread::sleep(Duration::from_millis(1));
    }
}
