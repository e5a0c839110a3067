//! Kernels at 2^31 and 2^32 elements and some more, on tensors that no test's machine could hold: the simulated driver executes blocks of large
//! launches (`SIMULATED_CUDA_MODE=sampled`), finds addresses outside of a kernel's buffers, and what the blocks wrote is compared here.
//!
//! Memory is zeros but for a few elements: those at the ends, and at 2^31 and 2^32. Kernels that loop over elements take these in their first
//! and last blocks, and so do kernels with a block for each row, whose last row begins at 2^31 or 2^32. Both blocks are always executed.

mod candle;
mod layers;
mod memory;
mod optimizers;

use std::collections::BTreeMap;
use std::env;
use std::process::{Command, Output};

use candle_core::{DType, Tensor, Var};
use candle_headroom::batch::Halving;
use candle_headroom::error::Cause;
use candle_headroom::nn::ops;
use candle_headroom::{AdaptiveTrainer, DeviceMemory, ErrorExt};
use parking_lot::Mutex;

use crate::simulator::Simulator;
use crate::support::sgd;
use memory::Large;

/// A case: whether the kernel is this project's, its name, and what it does with `n` elements.
struct Case {
    is_ours: bool,
    name: &'static str,
    run: fn(&Large) -> candle_core::Result<()>,
}

const fn ours(name: &'static str, run: fn(&Large) -> candle_core::Result<()>) -> Case {
    let is_ours = true;
    Case { is_ours, name, run }
}

const fn candles(name: &'static str, run: fn(&Large) -> candle_core::Result<()>) -> Case {
    let is_ours = false;
    Case { is_ours, name, run }
}

/// Elements of a row.
const WIDTH: usize = 64;

/// Multiples of a row, so that the last row begins at 2^31 or 2^32.
const SIZES: [usize; 2] = [(1 << 31) + WIDTH, (1 << 32) + WIDTH];

const FROM: &str = "HEADROOM_TEST_FROM";

fn cases() -> Vec<Case> {
    [layers::cases(), optimizers::cases(), candle::cases()]
        .into_iter()
        .flatten()
        .collect()
}

/// Runs the cases from a number on, each at both sizes, until one is wrong: then the context is lost, or may be.
#[test]
#[ignore = "a program of the test below"]
fn from_a_case() {
    let from: usize = env::var(FROM).expect("set").parse().expect("a number");
    let cases = cases();
    let all = (cases.iter()).flat_map(|case| SIZES.map(|elements| (case, elements)));
    for (number, (case, elements)) in all.enumerate().skip(from) {
        let large = Large::new(elements);
        eprintln!("case {number}");
        (case.run)(&large).unwrap_or_else(|error| panic!("{error}"));
        large
            .synchronize()
            .unwrap_or_else(|error| panic!("{error}"));
    }
    eprintln!("case {}", 2 * cases.len());
}

/// Runs a program of this file on a device of more memory than the host's.
fn sampled(program: &str, from: usize) -> Output {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args([
        "--exact",
        program,
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command
        .env(FROM, from.to_string())
        .env("RUST_BACKTRACE", "0");
    command.env("SIMULATED_CUDA_MEMORY", (160u64 << 30).to_string());
    command.env("SIMULATED_CUDA_MODE", "sampled");
    command.env("SIMULATED_CUDA_SAMPLED_ABOVE", "256");
    command.env("SIMULATED_CUDA_SAMPLED_BLOCKS", "2");
    // Fewer than a loop without end, and more than any other of these.
    command.env("SIMULATED_CUDA_INSTRUCTIONS", (1u64 << 24).to_string());
    command.output().expect("a process")
}

/// What is wrong with which cases, by their numbers.
fn wrong(count: usize) -> BTreeMap<usize, String> {
    let (mut wrong, mut from) = (BTreeMap::new(), 0);
    while from < count {
        let output = sampled("large::from_a_case", from);
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("case "));
        let last = last.unwrap_or_else(|| panic!("no case began: {text}"));
        let last: usize = last.parse().expect("a number");
        if last < count {
            let why = text
                .rsplit_once(&format!("case {last}\n"))
                .map_or("", |(_, why)| why);
            let is_told = |line: &&str| line.contains("kernel ") || line.contains("expected");
            let why = why.lines().find(is_told).unwrap_or(why);
            wrong.insert(last, why.to_owned());
        }
        assert!(last == count || !output.status.success(), "{text}");
        from = last + 1;
    }
    wrong
}

/// candle's kernels that count in 32 bits, of those that layers and trainers call. If one is no longer wrong, candle has mended it: see
/// docs/reference/upstream.md, and the checks of crates/nn/src/kernel/range.rs.
#[test]
fn large_indices() {
    if Simulator::of(0).is_none() {
        eprintln!("skipped: a real GPU does not execute in part");
        return;
    }
    let cases = cases();
    layers::assert_complete(&cases.iter().map(|case| case.name).collect::<Vec<_>>());
    let wrong = wrong(cases.len() * 2);
    let mut ours = Vec::new();
    let mut candles: BTreeMap<&str, [bool; 2]> = BTreeMap::new();
    for (number, why) in &wrong {
        let (case, size) = (&cases[number / 2], number % 2);
        println!("{} at 2^{} + {WIDTH}: {why}", case.name, 31 + size);
        match case.is_ours {
            true => ours.push(case.name),
            false => candles.entry(case.name).or_default()[size] = true,
        }
    }
    ours.dedup();
    let number = cases.iter().filter(|case| case.is_ours).count();
    println!(
        "figure: cuda/large_index_kernels_wrong = {} of {number} kernels",
        ours.len()
    );
    println!(
        "figure: cuda/large_index_kernels_wrong_of_candle = {} of {} kernels",
        candles.len(),
        cases.len() - number
    );
    let both = |is_at: [bool; 2]| {
        let names = candles.iter().filter(|(_, wrong)| **wrong == is_at);
        names.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    println!("candle's, from 2^31 on: {}", both([true, true]));
    println!("candle's, from 2^32 on: {}", both([false, true]));
    assert_eq!(ours, Vec::<&str>::new());
    assert_eq!(both([true, false]), "");
}

/// A batch of which four samples have more elements than candle's kernels count, though memory is free.
#[test]
#[ignore = "a program of the test below"]
fn cuts_to_the_range() {
    let memory = DeviceMemory::cuda(0).open().unwrap();
    let device = memory.device();
    let var = Var::ones(4, DType::F32, device).unwrap();
    let trainer = AdaptiveTrainer::builder(sgd(std::slice::from_ref(&var), 1e-3));
    let trainer = trainer.memory(&memory).policy(Halving::default());
    let mut trainer = trainer.build().unwrap();
    let x = Tensor::ones((8, 4), DType::F32, device).unwrap();
    let causes = Mutex::new(Vec::new());
    let report = trainer.step(&x, |x, _| {
        let large = Tensor::zeros((x.dims()[0], 1 << 29), DType::BF16, x.device())?;
        let sum = ops::add(&large, &large);
        if let Err(error) = &sum {
            let exhausted = error.resource_exhausted();
            causes
                .lock()
                .push(exhausted.map(|exhausted| exhausted.cause));
        }
        sum?;
        x.broadcast_mul(&var)?.sum(1)?.mean_all()
    });
    assert_eq!(report.unwrap().sizes, [2; 4]);
    assert_eq!(causes.into_inner(), [Some(Cause::IndexRange); 2]);
}

#[test]
fn a_trainer_cuts_to_the_range_of_indices() {
    if Simulator::of(0).is_none() {
        eprintln!("skipped: it needs as much memory as two tensors of 2^31 elements");
        return;
    }
    let output = sampled("large::cuts_to_the_range", 0);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}
