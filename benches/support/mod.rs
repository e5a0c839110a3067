//! Comparison of contenders in one run: alternated rounds, medians, figure lines.
#![allow(dead_code)] // each benchmark uses its own part

pub mod parameters;
#[path = "../../examples/train_text/model.rs"]
pub mod transformer;

use std::process::Command;
use std::time::{Duration, Instant};

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_headroom::Foreign;
use candle_nn::{Optimizer, SGD, VarBuilder, VarMap};
use transformer::{Config, Transformer};

/// Whether `--quick` asks for fewer rounds.
pub fn is_quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// Starts this benchmark again with a glibc that keeps freed memory. Returns whether this is the process that measures.
///
/// By default glibc returns the top of its heap at each large free and faults it in again, at moments that depend on where blocks
/// lie. In a loop that frees a graph for each micro-batch, this moves ratios by about 5 % from one process to the next, more than the
/// benchmarks measure (docs/reference/figures.md). Other allocators ignore these variables.
pub fn measures_with_steady_heap() -> bool {
    const VARIABLES: [&str; 2] = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"];
    if VARIABLES
        .iter()
        .all(|name| std::env::var_os(name).is_some())
    {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().expect("this program's path"));
    child
        .args(std::env::args_os().skip(1))
        .envs(VARIABLES.map(|name| (name, "8589934592")));
    let status = child.status().expect("this program, started again");
    assert!(status.success(), "{status}");
    false
}

pub fn figure(name: &str, number: f64, unit: &str) {
    println!("figure: {name} = {number:.4} {unit}");
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A named function to time.
pub struct Contender<'a> {
    pub name: &'static str,
    pub run: Box<dyn FnMut() -> Duration + 'a>,
}

impl<'a> Contender<'a> {
    /// Times the whole of `run`.
    pub fn new(name: &'static str, mut run: impl FnMut() + 'a) -> Self {
        Self::timing_itself(name, move || {
            let began = Instant::now();
            run();
            began.elapsed()
        })
    }

    pub fn timing_itself(name: &'static str, run: impl FnMut() -> Duration + 'a) -> Self {
        Self {
            name,
            run: Box::new(run),
        }
    }
}

/// Seconds of each contender in each round. Every round runs all of them and begins with another one, so that other load on the
/// machine affects all alike.
pub struct Rounds {
    names: Vec<&'static str>,
    seconds: Vec<Vec<f64>>,
}

pub fn alternate(mut contenders: Vec<Contender<'_>>, rounds: usize) -> Rounds {
    let count = contenders.len();
    let mut seconds = vec![Vec::with_capacity(rounds); count];
    for contender in &mut contenders {
        (contender.run)(); // warm-up
    }
    for round in 0..rounds {
        for turn in 0..count {
            let index = (round + turn) % count;
            seconds[index].push((contenders[index].run)().as_secs_f64());
        }
    }
    let names = contenders.iter().map(|contender| contender.name).collect();
    Rounds { names, seconds }
}

impl Rounds {
    fn of(&self, name: &str) -> &[f64] {
        let index = self.names.iter().position(|other| *other == name);
        &self.seconds[index.expect("a contender's name")]
    }

    /// The median over rounds of `a`'s time over `b`'s in the same round.
    pub fn ratio(&self, a: &str, b: &str) -> f64 {
        let pairs = self.of(a).iter().zip(self.of(b));
        median(pairs.map(|(a, b)| a / b).collect())
    }

    /// The median of a contender's seconds.
    pub fn median(&self, name: &str) -> f64 {
        median(self.of(name).to_vec())
    }

    /// The contender with the shortest median time.
    pub fn fastest(&self) -> &'static str {
        let medians = self.seconds.iter().map(|seconds| median(seconds.clone()));
        let each = medians.zip(&self.names);
        let fastest = each.min_by(|a, b| a.0.total_cmp(&b.0));
        fastest.expect("a contender").1
    }

    pub fn print(&self, title: &str, operations: usize) {
        println!("{title}");
        for name in &self.names {
            let seconds = self.median(name) / operations as f64;
            let time = match seconds {
                s if s < 1e-6 => format!("{:.2} ns", s * 1e9),
                s if s < 1e-3 => format!("{:.2} µs", s * 1e6),
                s => format!("{:.2} ms", s * 1e3),
            };
            println!("  {name:<24} {time}");
        }
    }
}

/// The model of `train_text`, with its data.
pub struct Job {
    pub model: Transformer,
    pub varmap: VarMap,
    pub vars: Vec<Var>,
    pub x: Tensor,
    pub y: Tensor,
}

impl Job {
    pub fn new(config: Config, samples: usize) -> Result<Self> {
        Self::on(&Device::Cpu, config, samples)
    }

    pub fn on(device: &Device, config: Config, samples: usize) -> Result<Self> {
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, DType::F32, device);
        let model = Transformer::new(config, vb)?;
        let bytes = |shift: usize| {
            let bytes = (0..samples * config.context).map(|i| ((i * 31 + shift) % 251) as u32);
            Tensor::from_iter(bytes, device)?.reshape((samples, config.context))
        };
        Ok(Self {
            model,
            vars: varmap.all_vars(),
            varmap,
            x: bytes(0)?,
            y: bytes(31)?,
        })
    }

    pub fn parameter_bytes(&self) -> usize {
        let bytes = self
            .vars
            .iter()
            .map(|var| var.elem_count() * var.dtype().size_in_bytes());
        bytes.sum()
    }

    /// The mean loss of some samples.
    pub fn loss(&self, start: usize, size: usize) -> Result<Tensor> {
        self.model.loss(
            &self.x.narrow(0, start, size)?,
            &self.y.narrow(0, start, size)?,
        )
    }

    /// candle's own gradient descent, for a trainer.
    pub fn sgd(&self) -> Result<Foreign<SGD>> {
        let sgd = SGD::new(self.vars.clone(), 1e-4)?;
        Ok(Foreign::new(sgd, self.vars.clone()))
    }

    /// A careful hand-written loop: adds up the gradients of the trained Vars, out of place.
    pub fn step_by_hand(&self, optimizer: &mut SGD, count: usize, size: usize) -> Result<()> {
        let mut sums: Vec<Option<Tensor>> = vec![None; self.vars.len()];
        for i in 0..count {
            let loss = (self.loss(i * size, size)? / count as f64)?;
            let mut gradients = loss.backward()?;
            for (sum, var) in sums.iter_mut().zip(&self.vars) {
                if let Some(gradient) = gradients.remove(var) {
                    *sum = Some(match sum.take() {
                        Some(sum) => (sum + gradient)?,
                        None => gradient,
                    });
                }
            }
        }
        let mut store = GradStore::default();
        for (sum, var) in sums.into_iter().zip(&self.vars) {
            if let Some(sum) = sum {
                store.insert(var, sum);
            }
        }
        optimizer.step(&store)
    }
}
