//! What the index of a file of very many lines takes.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};
use candle_headroom::DeviceMemory;
use candle_headroom::data::{Dataset, Lines};

use crate::support::figure;

const LINES: usize = 1_000_000_000;

/// Of a 32nd of the lines each 16th is stored, as of all of them each 512th: the index is the same.
const PART: usize = 32;

/// Bytes that are kept of starts that are not stored, at most.
const FOUND: f64 = 4. * 1_048_576.;

pub fn of_a_part(_: bool) -> Result<()> {
    let bytes = measure(LINES / PART)? + FOUND;
    figure("data/index_mib_1e9", bytes / 1_048_576., "MiB");
    Ok(())
}

/// The same without an estimate.
pub fn of_a_billion() -> Result<()> {
    let bytes = measure(LINES)?;
    figure("data/index_mib_1e9_measured", bytes / 1_048_576., "MiB");
    Ok(())
}

/// The bytes of the index of so many lines, after lines from all over the file were read.
fn measure(lines: usize) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("lines.txt");
    let mut file = File::create(&path)?;
    let piece: Vec<u8> = (0..500_000_u32)
        .flat_map(|line| [b'a' + (line % 25) as u8, b'\n'])
        .collect();
    for _ in 0..lines / 500_000 {
        file.write_all(&piece)?;
    }
    file.write_all(&piece[..lines % 500_000 * 2])?;
    drop(file);
    let memory = DeviceMemory::host().open()?;
    let in_use = || memory.in_use().context("the allocator is installed");
    let before = in_use()?;
    let began = Instant::now();
    let opened = Lines::open(&path)?;
    let open = began.elapsed();
    anyhow::ensure!(opened.len() == lines, "{} lines", opened.len());
    let began = Instant::now();
    let mut read = 0;
    for at in (0..lines).step_by(lines / 1000) {
        let line = opened.get(at).ok().context("a line")?;
        let expected = [b'a' + (at % 500_000 % 25) as u8];
        anyhow::ensure!(line.as_bytes() == expected, "line {at} is {line}");
        read += 1;
    }
    let random = began.elapsed() / read;
    let first = 7 * (lines / 10);
    let began = Instant::now();
    for at in first..first + 100_000 {
        black_box(opened.get(at).ok().context("a line")?);
    }
    let sequential = began.elapsed() / 100_000;
    println!(
        "{lines} lines: opened in {open:.1?}, a line anywhere {random:.1?}, in order {sequential:.2?}"
    );
    // What others free meanwhile must not look like an index of nothing.
    let taken = in_use()?.checked_sub(before);
    Ok(taken.context("more was freed than the index takes")? as f64)
}
