//! What a loader costs: the time that training waits for it, and the memory of its order and position.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use candle_headroom::DeviceMemory;
use candle_headroom::data::{Dataset, Loader};
use candle_headroom::error::BoxedError;

use crate::support::figure;

const STEP: Duration = Duration::from_millis(20);
const SAMPLES: usize = 8;

/// Keeps a core busy.
fn work(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        black_box(began);
    }
}

/// Samples whose decoding takes half a step for each batch.
struct Decoded(usize);

impl Dataset for Decoded {
    type Sample = f32;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<f32, BoxedError> {
        work(STEP / (2 * SAMPLES as u32));
        Ok(index as f32)
    }
}

/// As many samples as nobody could list.
struct Huge;

const HUGE: usize = 1_000_000_000_000;

impl Dataset for Huge {
    type Sample = f32;

    fn len(&self) -> usize {
        HUGE
    }

    fn get(&self, index: usize) -> Result<f32, BoxedError> {
        Ok(index as f32)
    }
}

fn collate(samples: Vec<f32>) -> Result<Tensor, BoxedError> {
    Ok(Tensor::new(samples, &Device::Cpu)?)
}

pub fn waiting(is_quick: bool) -> Result<()> {
    let steps = if is_quick { 100 } else { 500 };
    let dataset = Decoded(steps * SAMPLES);
    let mut loader = Loader::builder(dataset, collate)
        .batch(SAMPLES)
        .shuffle(1)
        .workers(1)
        .build()?;
    for batch in &mut loader {
        black_box(batch?);
        work(STEP);
    }
    let stats = loader.stats();
    println!("a decoder that takes half a step, one worker: {stats:?}");
    // The first batch, which cannot be ready, counts too.
    figure("data/wait_percent", 100. * stats.wait_share(), "%");
    Ok(())
}

pub fn memory(_: bool) -> Result<()> {
    let memory = DeviceMemory::host().open()?;
    let in_use = || memory.in_use().context("the allocator is installed");
    // What a process allocates once for its first loader is not the order's.
    drop(read_some()?);
    let before = in_use()?;
    let loader = read_some()?;
    let taken = in_use()? - before;
    figure("data/order_memory_bytes", taken as f64, "B");
    let state = serde_json::to_string(loader.state())?;
    println!("the state after 1000 of 10^12 samples: {state}");
    figure("data/state_bytes", state.len() as f64, "B");
    Ok(())
}

/// A loader that has handed out 1,000 batches.
fn read_some() -> Result<Loader<Tensor>> {
    let mut loader = Loader::builder(Huge, collate)
        .batch(SAMPLES)
        .shuffle(u64::MAX)
        .endless()
        .workers(0)
        .build()?;
    for batch in loader.by_ref().take(1000) {
        black_box(batch?);
    }
    Ok(loader)
}
