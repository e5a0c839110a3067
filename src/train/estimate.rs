use std::fmt;

use bytesize::ByteSize;
use candle_core::{DType, Var};
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
    /// The last micro-batch that was measured. The first one includes what is allocated once, such as the gradients' buffers.
    pub measured: Option<Measured>,
    /// Bytes that a micro-batch takes besides its samples, by the policy's model.
    pub base: Option<u64>,
    /// Bytes that each sample takes, by the policy's model.
    pub each: Option<u64>,
    /// What would reduce what is held, the most first.
    pub remedies: Vec<Remedy>,
}

/// A measured micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Measured {
    /// Its size, in samples.
    pub samples: usize,
    /// Bytes that it took at its peak, besides what was in use before.
    pub bytes: u64,
}

impl Measured {
    pub(super) fn new(samples: usize, bytes: u64) -> Self {
        Self { samples, bytes }
    }
}

impl Estimate {
    /// Counts what training with this optimizer holds, without a step.
    pub fn new<O: Commit + ?Sized>(optimizer: &O) -> Self {
        let (trained, frozen) = (optimizer.parameters(), optimizer.frozen());
        let elements = |parameters: &[Parameter]| {
            let counts = parameters.iter().map(|p| p.var.elem_count() as u64);
            counts.sum()
        };
        let bytes = |parameters: &[Parameter], of: fn(&Var) -> usize| {
            let sizes = parameters
                .iter()
                .map(|p| (p.var.elem_count() * of(&p.var)) as u64);
            sizes.sum::<u64>()
        };
        let of_parameter = |var: &Var| var.dtype().size_in_bytes();
        // BatchNorm's statistics receive none.
        let receiving = trained.iter().filter(|p| !is_statistic(&p.name));
        let receiving = Vec::from_iter(receiving.cloned());
        let of_gradient = |var: &Var| match var.dtype() {
            dtype if dtype.is_int() => 0,
            DType::F64 => 8,
            _ => 4,
        };
        let held = [
            ("parameters", Some(bytes(trained, of_parameter))),
            ("frozen parameters", Some(bytes(&frozen, of_parameter))),
            (
                "accumulated gradients",
                Some(bytes(&receiving, of_gradient)),
            ),
            ("optimizer state", optimizer.state_bytes()),
        ];
        let held = held
            .into_iter()
            .filter_map(|(what, bytes)| Some((what, bytes?)));
        let held = held.filter(|(_, bytes)| *bytes > 0);
        let mut remedies = optimizer.remedies();
        remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.saves));
        Self {
            trained: elements(trained),
            frozen: elements(&frozen),
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
    pub fn peak(&self, samples: usize) -> Option<u64> {
        let taken = match (self.base, self.each, self.measured) {
            (Some(base), Some(each), _) => base.saturating_add(each.saturating_mul(samples as u64)),
            (_, _, Some(Measured { samples: of, bytes })) => {
                (bytes as f64 / of.max(1) as f64 * samples as f64) as u64
            }
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
        } else if let Some(Measured { samples, bytes }) = self.measured {
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
