//! Batches of random windows of a file of tokens, against plain copies of such windows out of a map of it.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use candle_headroom::data::{Dataset, Loader, Tokens, stack_tokens};
use memmap2::Mmap;
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::support::{Contender, alternate, figure};

pub const WINDOW: usize = 1_025;
pub const STRIDE: usize = 1_024;
pub const SAMPLES: usize = 64;

pub fn write(path: &Path, bytes: usize) -> anyhow::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut random = StdRng::seed_from_u64(16);
    let block: Vec<u8> = (0..1 << 20).map(|_| random.random()).collect();
    for _ in 0..bytes / block.len() {
        file.write_all(&block)?;
    }
    Ok(file.flush()?)
}

/// Times a function over batches of windows that differ from call to call, so that no contender finds in the cache what the one
/// before has read.
fn timed<'a>(
    name: &'static str,
    (windows, batches, seed): (usize, usize, u64),
    mut batch: impl FnMut(&[usize]) + 'a,
) -> Contender<'a> {
    let mut random = StdRng::seed_from_u64(seed);
    Contender::timing_itself(name, move || {
        let indices: Vec<usize> = (0..batches * SAMPLES)
            .map(|_| random.random_range(0..windows))
            .collect();
        let mut time = Duration::ZERO;
        for indices in indices.chunks(SAMPLES) {
            let began = Instant::now();
            batch(indices);
            time += began.elapsed();
        }
        time
    })
}

pub fn compare(is_quick: bool) -> anyhow::Result<()> {
    let (bytes, batches, rounds) = if is_quick {
        (1 << 28, 100, 9)
    } else {
        (1 << 30, 500, 25)
    };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokens.bin");
    write(&path, bytes)?;
    let tokens = Arc::new(
        Tokens::builder([&path])
            .window(WINDOW)
            .stride(STRIDE)
            .open()?,
    );
    let file = File::open(&path)?;
    // SAFETY: nobody else knows the file, so it does not change while it is mapped.
    let map = unsafe { Mmap::map(&file) }?;
    // Reads every page of both.
    let sum: u64 = map.iter().step_by(4_096).map(|byte| u64::from(*byte)).sum();
    let windows = tokens.len();
    let mut all = Vec::with_capacity(WINDOW);
    for index in 0..windows {
        all.clear();
        tokens
            .get(index)
            .ok()
            .context("a window")?
            .write_u32(&mut all)?;
    }
    black_box((sum, all));

    let copy = |indices: &[usize]| {
        let mut copies: Vec<u8> = Vec::with_capacity(SAMPLES * WINDOW * 2);
        for index in indices {
            let start = index * STRIDE * 2;
            copies.extend_from_slice(&map[start..start + WINDOW * 2]);
        }
        black_box(copies);
    };
    let stack = |indices: &[usize]| {
        let samples = indices.iter().map(|index| tokens.get(*index));
        let samples: Result<Vec<_>, _> = samples.collect();
        let batch = samples.and_then(stack_tokens).expect("a batch");
        black_box(batch);
    };
    // One worker, and a training that takes each batch as soon as it is ready: the time is that of the worker.
    let mut loader = Loader::builder(Arc::clone(&tokens), stack_tokens)
        .batch(SAMPLES)
        .shuffle(3)
        .endless()
        .workers(1)
        .build()?;
    let load = move || {
        let began = Instant::now();
        for batch in loader.by_ref().take(batches) {
            black_box(batch.expect("a batch"));
        }
        began.elapsed()
    };
    let times = alternate(
        vec![
            timed("copy", (windows, batches, 1), copy),
            timed("tensor", (windows, batches, 2), stack),
            Contender::timing_itself("loader", load),
        ],
        rounds,
    );
    times.print(
        &format!(
            "{SAMPLES} random windows of {WINDOW} tokens of {} MB, a batch:",
            bytes >> 20
        ),
        batches,
    );
    figure("data/tokens_vs_memcpy", times.ratio("copy", "loader"), "x");
    figure(
        "data/tokens_in_place_vs_memcpy",
        times.ratio("copy", "tensor"),
        "x",
    );
    Ok(())
}
