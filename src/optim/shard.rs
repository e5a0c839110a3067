use std::collections::HashMap;
use std::ops::Range;

use candle_core::{TensorId, Var};

use super::Parameter;

/// The elements of parameters whose state one rank keeps and which it updates; for [`Commit::shard`](super::Commit::shard).
///
/// After Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv 1910.02054), stage 1:
/// each rank updates its elements, then all copy them to each other.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// use candle_headroom::AdamW;
/// use candle_headroom::optim::{Commit, Shard, StateDict};
///
/// // Two ranks, here in one process.
/// let mut ranks = Vec::new();
/// for rank in 0..2 {
///     let w = Var::ones(1024, candle_core::DType::F32, &Device::Cpu)?;
///     let mut optimizer = AdamW::builder(vec![w.clone()]).sharded().build()?;
///     let mut shard = Shard::of(optimizer.parameters());
///     shard.own(&w, rank * 512..(rank + 1) * 512);
///     optimizer.shard(&shard, None)?;
///     assert_eq!(optimizer.state_bytes(), 2 * 4 * 512);
///     optimizer.commit(&w.sqr()?.backward()?)?;
///     ranks.push(optimizer);
/// }
/// let states = ranks.iter().map(|rank| rank.state()).collect::<Result<_, _>>()?;
/// let whole = StateDict::merge(states)?;
/// assert_eq!(whole.tensors["0.exp_avg"].dims(), [1024]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shard {
    /// Sorted; ranges do not touch.
    ranges: HashMap<TensorId, Vec<Range<usize>>>,
}

impl Shard {
    /// Elements between two cuts, counted from the first element of a parameter, that suit all optimizers: pieces that begin at a multiple
    /// and end at one, or with the parameter. Moments of 8 bits need this, since their blocks are not cut. Others take any cut, but are
    /// updated faster on CUDA between these.
    pub const ALIGNMENT: usize = super::coded::BLOCK;

    /// Lists these parameters, and owns none of their elements yet. A shard has to list all parameters that are not frozen.
    pub fn of(parameters: &[Parameter]) -> Self {
        let listed = parameters.iter();
        Self {
            ranges: listed.map(|p| (p.var.id(), Vec::new())).collect(),
        }
    }

    /// Adds elements of a parameter, counted in row-major order, and lists the parameter if it was not.
    pub fn own(&mut self, var: &Var, range: Range<usize>) {
        let ranges = self.ranges.entry(var.id()).or_default();
        if range.is_empty() {
            return;
        }
        ranges.push(range);
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let touches = next.start <= range.end;
            if touches {
                range.end = range.end.max(next.end);
            }
            touches
        });
    }

    /// The ranges of a parameter, sorted and apart from each other; `None` if it is not listed.
    pub fn ranges(&self, var: &Var) -> Option<&[Range<usize>]> {
        self.ranges.get(&var.id()).map(Vec::as_slice)
    }
}
