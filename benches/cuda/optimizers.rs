//! One AdamW step on the GPU: candle's, this crate's, PyTorch's, and a bare copy of as many bytes.

use std::io::Write;
use std::process::{Command, Stdio};

use candle_core::{DType, Tensor, Var};
use candle_headroom::optim::{Commit, Moments, ParamsAdamW};
use candle_headroom::{AdamW, DeviceMemory, Result};
use candle_nn::Optimizer;

use crate::support::parameters::{Parameters, transformer};
use crate::support::{Contender, alternate, median};
use crate::{Scale, is_real, report};

pub fn against_others(scale: &Scale) -> Result<()> {
    let sets = match is_real() {
        true => [
            ("one_large", vec![vec![16 * 1024 * 1024]]),
            ("many_small", vec![vec![4096]; 1000]),
            ("transformer", transformer(50_257, 1024, 768, 12)),
        ],
        false => [
            ("one_large", vec![vec![4096]]),
            ("many_small", vec![vec![8]; 20]),
            ("transformer", transformer(16, 4, 4, 1)),
        ],
    };
    let shapes = sets.each_ref().map(|(_, shapes)| shapes.clone());
    let torchs = pytorch(&shapes, scale.rounds);
    if torchs.is_none() {
        println!("python3 has no PyTorch that runs here: nothing to compare with it");
    }
    let memory = DeviceMemory::cuda(0).open()?;
    let (mut worst_copy, mut worst_torch) = (f64::INFINITY, f64::INFINITY);
    for (index, (name, shapes)) in sets.iter().enumerate() {
        let (seconds, against_copy) = against_candle(&memory, scale, name, shapes)?;
        worst_copy = worst_copy.min(against_copy);
        // Not in alternation: two processes on one GPU take turns in slices of their own.
        if let Some(torch) = torchs.as_ref().and_then(|seconds| seconds.get(index)) {
            println!("  PyTorch, fused           {:.2} µs", torch * 1e6);
            let ratio = torch / seconds;
            report(&format!("adamw_vs_torch_fused_{name}"), ratio, "x");
            worst_torch = worst_torch.min(ratio);
        }
    }
    report("adamw_vs_copy_bandwidth", worst_copy, "x");
    if worst_torch.is_finite() {
        report("adamw_vs_torch_fused", worst_torch, "x");
    }
    Ok(())
}

/// Seconds of a fused step, and how much of a copy's speed it has.
fn against_candle(
    memory: &DeviceMemory,
    scale: &Scale,
    name: &str,
    shapes: &[Vec<usize>],
) -> Result<(f64, f64)> {
    let device = memory.device();
    let (ours, coded, candles) = (
        Parameters::on(device, shapes)?,
        Parameters::on(device, shapes)?,
        Parameters::on(device, shapes)?,
    );
    let mut fused = AdamW::builder(ours.vars).build()?;
    let builder = AdamW::builder(coded.vars);
    let mut eight_bit = builder.moments(Moments::EightBit).build()?;
    let mut candle = candle_nn::AdamW::new(candles.vars, ParamsAdamW::default())?;
    // AdamW moves 28 bytes for a parameter; a copy moves 8 for an element.
    let copied = ours.elements * 28 / 8;
    let from = Tensor::zeros(copied, DType::F32, device)?;
    let into = Var::zeros(copied, DType::F32, device)?;
    let wait = || device.synchronize().expect("a sound device");
    let mut seconds = Vec::new();
    let contenders = vec![
        Contender::new("candle_nn", || {
            candle.step(&candles.gradients).expect("a step");
            wait();
        }),
        Contender::timing_itself("fused", || {
            let began = std::time::Instant::now();
            fused.commit(&ours.gradients).expect("a step");
            wait();
            let took = began.elapsed();
            seconds.push(took.as_secs_f64());
            took
        }),
        Contender::new("fused_8bit", || {
            eight_bit.commit(&coded.gradients).expect("a step");
            wait();
        }),
        Contender::new("copy", || {
            into.set(&from).expect("a copy");
            wait();
        }),
    ];
    let rounds = alternate(contenders, scale.rounds);
    let millions = ours.elements as f64 / 1e6;
    rounds.print(
        &format!("AdamW, {name}: {millions:.1} million parameters"),
        1,
    );
    report(
        &format!("adamw_speedup_{name}"),
        rounds.ratio("candle_nn", "fused"),
        "x",
    );
    report(
        &format!("adamw_8bit_time_vs_f32_{name}"),
        rounds.ratio("fused_8bit", "fused"),
        "x",
    );
    let against_copy = rounds.ratio("copy", "fused");
    report(
        &format!("adamw_vs_copy_bandwidth_{name}"),
        against_copy,
        "x",
    );
    Ok((median(seconds), against_copy))
}

/// PyTorch's seconds for each list of shapes, in a process of its own.
fn pytorch(shapes: &[Vec<Vec<usize>>], rounds: usize) -> Option<Vec<f64>> {
    if !is_real() {
        return None;
    }
    let mut python = Command::new("python3")
        .args(["-c", include_str!("torch_adamw.py"), "cuda:0"])
        .arg(rounds.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    // Nested lists of numbers are written alike in Rust and in JSON.
    let lists = format!("{shapes:?}");
    python.stdin.take()?.write_all(lists.as_bytes()).ok()?;
    let output = python.wait_with_output().ok()?;
    let lines = String::from_utf8(output.stdout).ok()?;
    let seconds: Option<Vec<f64>> = lines.lines().map(|line| line.parse().ok()).collect();
    seconds.filter(|seconds| seconds.len() == shapes.len())
}
