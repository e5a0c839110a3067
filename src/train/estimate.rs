use std::fmt;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::error::{Holding, Remedy};
use crate::names::is_statistic;
use crate::optim::{Commit, Parameter};

/// What training takes of memory: [`Estimate::new`] before the first step, [`AdaptiveTrainer::estimate`](super::AdaptiveTrainer::estimate)
/// after a micro-batch, then with its activations. `{}` is a table.
///
/// What is held is counted from shapes and types; an allocator may round it up. What a micro-batch takes was measured.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom::train::Estimate;
/// use candle_headroom::AdamW;
/// use candle_nn::{VarBuilder, VarMap, linear};
///
/// let varmap = VarMap::new();
/// linear(256, 256, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let estimate = Estimate::new(&AdamW::builder(&varmap).build()?);
/// assert_eq!(estimate.trained, 256 * 256 + 256); // elements
/// // Parameters, gradients and two moments, 4 bytes each.
/// assert_eq!(estimate.held_bytes(), 16 * estimate.trained);
/// println!("{estimate}");
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Estimate {
    /// Number of trained elements.
    pub trained: u64,
    /// Number of frozen elements, which have neither gradients nor optimizer state.
    pub frozen: u64,
    /// What is held from the first update on: parameters, accumulated gradients, optimizer state, named buffers.
    pub held: Vec<Holding>,
    /// The last micro-batch that was measured: its size, in samples, and the bytes that it took at its peak, besides what was in use before.
    /// The first one includes what is allocated once, such as the gradients' buffers.
    pub measured: Option<(usize, u64)>,
    /// Bytes that a micro-batch takes besides its samples, by the policy's model.
    pub base: Option<u64>,
    /// Bytes that each sample takes, by the policy's model.
    pub each: Option<u64>,
    /// What would reduce what is held, the most first.
    pub remedies: Vec<Remedy>,
}

impl Estimate {
    /// Counts what training with this optimizer holds, without a step.
    ///
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Group;
    /// use candle_headroom::train::Estimate;
    ///
    /// let base = Var::zeros((8, 8), DType::F32, &Device::Cpu)?;
    /// let adapter = Var::zeros((8, 2), DType::F32, &Device::Cpu)?;
    /// let frozen = Group::from(vec![("base", base)]).frozen();
    /// let optimizer = AdamW::builder(vec![("adapter", adapter)]).group(frozen).build()?;
    /// let estimate = Estimate::new(&optimizer);
    /// assert_eq!((estimate.trained, estimate.frozen), (16, 64));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn new<O: Commit + ?Sized>(optimizer: &O) -> Self {
        let (trained, frozen) = (optimizer.parameters(), optimizer.frozen());
        let sum = |all: &[Parameter], each: fn(&Parameter) -> usize| {
            all.iter().map(|p| each(p) as u64).sum::<u64>()
        };
        let elements = |p: &Parameter| p.var.elem_count();
        let bytes = |p: &Parameter| p.var.elem_count() * p.var.dtype().size_in_bytes();
        // In f32 at least. BatchNorm's statistics receive none.
        let gradient = |p: &Parameter| match p.var.dtype().is_int() || is_statistic(&p.name) {
            true => 0,
            false => p.var.elem_count() * p.var.dtype().size_in_bytes().max(4),
        };
        let held = [
            ("parameters", sum(trained, bytes)),
            ("frozen parameters", sum(&frozen, bytes)),
            ("accumulated gradients", sum(trained, gradient)),
            ("optimizer state", optimizer.state_bytes().unwrap_or(0)),
        ];
        let held = held.into_iter().filter(|(_, bytes)| *bytes > 0);
        let mut remedies = optimizer.remedies();
        remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.saves));
        Self {
            trained: sum(trained, elements),
            frozen: sum(&frozen, elements),
            held: held
                .map(|(what, bytes)| Holding::new(what, bytes))
                .collect(),
            measured: None,
            base: None,
            each: None,
            remedies,
        }
    }

    /// Returns the bytes of everything that is held.
    pub fn held_bytes(&self) -> u64 {
        self.held.iter().map(|held| held.bytes).sum()
    }

    /// Returns the peak with micro-batches of `samples` samples, in bytes: what is held, and what the micro-batch takes by the policy's
    /// model, or in proportion to the one that was measured. `None` before that.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Var};
    /// # use candle_headroom::{Sgd, train::Estimate};
    /// # let w = Var::zeros(8, DType::F32, &Device::Cpu)?;
    /// let mut estimate = Estimate::new(&Sgd::builder(vec![w]).build()?);
    /// assert_eq!(estimate.peak(8), None); // nothing was measured
    /// (estimate.base, estimate.each) = (Some(1000), Some(10)); // as a trainer's estimate has them
    /// assert_eq!(estimate.peak(8), Some(estimate.held_bytes() + 1080));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn peak(&self, samples: usize) -> Option<u64> {
        let taken = match (self.base, self.each, self.measured) {
            (Some(base), Some(each), _) => base.saturating_add(each.saturating_mul(samples as u64)),
            (_, _, Some((of, bytes))) => (bytes as f64 / of.max(1) as f64 * samples as f64) as u64,
            _ => return None,
        };
        Some(self.held_bytes().saturating_add(taken))
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, what: &str, bytes: u64| {
            writeln!(f, "  {what:<28} {:>10}", ByteSize(bytes).to_string())
        };
        write!(f, "{} elements trained", self.trained)?;
        match self.frozen {
            0 => writeln!(f)?,
            frozen => writeln!(f, ", {frozen} frozen")?,
        }
        for held in &self.held {
            row(f, &held.what, held.bytes)?;
        }
        row(f, "held in all", self.held_bytes())?;
        if let (Some(base), Some(each)) = (self.base, self.each) {
            row(f, "a micro-batch besides", base)?;
            row(f, "each of its samples", each)?;
        } else if let Some((samples, bytes)) = self.measured {
            row(f, &format!("a micro-batch of {samples}"), bytes)?;
        }
        for samples in [1, 8, 64] {
            if let Some(peak) = self.peak(samples) {
                row(f, &format!("peak with micro-batches of {samples}"), peak)?;
            }
        }
        for (index, remedy) in self.remedies.iter().enumerate() {
            if index == 0 {
                f.write_str("what would reduce it")?;
            }
            write!(f, "\n  {}. {remedy}", index + 1)?;
        }
        Ok(())
    }
}
