//! Parameters with their names, and the options that groups of them have. Saved state finds a parameter by its name.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::PoisonError;

use candle_core::{DType, TensorId, Var};
use candle_nn::VarMap;
use serde::{Deserialize, Serialize};

use super::rule;
use crate::error::Result;
use crate::names::Patterns;

/// A Var that an optimizer updates, and its name.
///
/// ```
/// use candle_core::{Device, Var};
/// use candle_headroom::AdamW;
/// use candle_headroom::optim::Commit;
///
/// let [a, b] = [Var::new(1f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?];
/// let optimizer = AdamW::builder(vec![("encoder.weight", a)]).group(vec![b]).build()?;
/// let names = optimizer.parameters().iter().map(|parameter| parameter.name.as_str());
/// assert!(names.eq(["encoder.weight", "1"])); // the second has no name
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Parameter {
    /// The name in errors and saved state. A Var without a name has its place in the list: `0`, `1`, and so on.
    pub name: String,
    /// The variable.
    pub var: Var,
}

impl Parameter {
    /// A named Var.
    ///
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::optim::Parameter;
    ///
    /// let weight = Var::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let parameter = Parameter::new("encoder.weight", weight);
    /// assert_eq!((parameter.name.as_str(), parameter.var.dims()), ("encoder.weight", &[2, 3][..]));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn new(name: impl Into<String>, var: Var) -> Self {
        Self {
            name: name.into(),
            var,
        }
    }
}

/// Parameters with options in common.
///
/// A group is made from a list of Vars, of named Vars, or from a [`VarMap`] (all of them, sorted by name). Saved state finds its
/// parameters by name, so prefer names: `varmap.all_vars()` returns another order in each run.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom::optim::Group;
/// use candle_headroom::AdamW;
/// use candle_nn::{linear, VarBuilder, VarMap};
///
/// let varmap = VarMap::new();
/// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let (biases, weights) = Group::from(&varmap).matching(["*bias"])?;
/// let optimizer = AdamW::builder(weights)
///     .group(biases.weight_decay(0.).learning_rate_factor(0.1))
///     .build()?;
/// assert_eq!(optimizer.groups()[1].weight_decay, Some(0.));
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// A Var without a name has an empty one.
    parameters: Vec<Parameter>,
    pub(super) options: GroupOptions,
    /// `None` for the optimizer's.
    pub(super) moments: Option<Moments>,
}

/// Options of a group; see [`Fused::set_group`](super::Fused::set_group).
///
/// ```
/// use candle_headroom::optim::GroupOptions;
///
/// let options = GroupOptions::default().weight_decay(0.).learning_rate_factor(0.1);
/// assert_eq!((options.weight_decay, options.frozen), (Some(0.), false));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GroupOptions {
    /// Factor on the optimizer's learning rate, so that a schedule applies to all groups; 1 by default.
    pub learning_rate_factor: f64,
    /// The group's own weight decay; `None` for the optimizer's.
    pub weight_decay: Option<f64>,
    /// Frozen: not updated. A frozen group keeps no moments and no master weights, and its gradients do not count for the norm.
    pub frozen: bool,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            learning_rate_factor: 1.,
            weight_decay: None,
            frozen: false,
        }
    }
}

impl GroupOptions {
    /// Sets [`learning_rate_factor`](Self::learning_rate_factor), which is at least 0. With 0 the parameters do not move, and
    /// their moments go on.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::GroupOptions;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::builder(vec![w]).learning_rate(1e-3).build()?;
    /// optimizer.set_group(0, GroupOptions::default().learning_rate_factor(0.1))?; // now 1e-4
    /// assert_eq!(optimizer.groups()[0].learning_rate_factor, 0.1);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn learning_rate_factor(mut self, factor: f64) -> Self {
        self.learning_rate_factor = factor;
        self
    }

    /// Sets [`weight_decay`](Self::weight_decay), which is at least 0.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::GroupOptions;
    ///
    /// let w = Var::new(3f32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::builder(vec![w]).learning_rate(1e-3).build()?;
    /// optimizer.set_group(0, GroupOptions::default().weight_decay(0.))?;
    /// assert_eq!(optimizer.groups()[0].weight_decay, Some(0.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = Some(weight_decay);
        self
    }

    /// Sets [`frozen`](Self::frozen).
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::{Commit, GroupOptions};
    ///
    /// let [encoder, head] = [Var::new(1f32, &Device::Cpu)?, Var::new(2f32, &Device::Cpu)?];
    /// let builder = AdamW::builder(vec![("encoder", encoder)]).group(vec![("head", head)]);
    /// let mut optimizer = builder.build()?;
    /// optimizer.set_group(0, GroupOptions::default().frozen(true))?;
    /// assert_eq!(optimizer.frozen()[0].name, "encoder");
    /// assert_eq!(optimizer.state_bytes(), 8); // two moments of `head`
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn frozen(self, frozen: bool) -> Self {
        Self { frozen, ..self }
    }

    pub(super) fn check(&self, optimizer: &'static str) -> Result<()> {
        let factor = self.learning_rate_factor;
        rule::Range::NOT_NEGATIVE.check(optimizer, "learning_rate_factor", factor)?;
        rule::Range::NOT_NEGATIVE.check(optimizer, "weight_decay", self.weight_decay)
    }
}

/// How an optimizer keeps its moments; for [`FusedBuilder::moments`](super::FusedBuilder::moments).
///
/// ```
/// use candle_core::{DType, Device, Var};
/// use candle_headroom::AdamW;
/// use candle_headroom::optim::Moments;
///
/// let w = Var::zeros(4096, DType::F32, &Device::Cpu)?;
/// let build = |moments: Moments| AdamW::builder(vec![w.clone()]).moments(moments).build();
/// assert_eq!(build(Moments::Float(DType::F32))?.state_bytes(), 2 * 4 * 4096);
/// assert_eq!(build(Moments::Float(DType::BF16))?.state_bytes(), 2 * 2 * 4096);
/// assert_eq!(build(Moments::EightBit)?.state_bytes(), 2 * (4096 + 4 * 16)); // 16 blocks
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Moments {
    /// In this type: `F32` or `BF16`, and `F64` for f64 parameters.
    Float(DType),
    /// In 8 bits: 1.016 bytes per element.
    ///
    /// After Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861): each block of 256 elements
    /// has its largest element in f32, and a byte for each element in the dynamic tree code, with a sign for a first moment and
    /// without for a second. Other than there, the sign of the largest element is kept with it, so that it is exact; moments are rounded
    /// at random, because 8 bits cannot tell the change of a step apart; and no second moment becomes 0 that was not, because a division
    /// by it would make a step of any size (in blocks whose largest element is at least 1e-30).
    ///
    /// Parameters with fewer than 4,096 elements keep f32, as in the paper; so norms and biases do.
    EightBit,
}

impl From<DType> for Moments {
    fn from(dtype: DType) -> Self {
        Self::Float(dtype)
    }
}

impl Group {
    /// Sets the factor on the optimizer's learning rate, at least 0.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::Sgd;
    /// use candle_headroom::optim::{Commit, Group};
    ///
    /// let [encoder, head] = [Var::new(3f32, &Device::Cpu)?, Var::new(3f32, &Device::Cpu)?];
    /// let slower = Group::from(vec![("encoder", encoder.clone())]).learning_rate_factor(0.5);
    /// let builder = Sgd::builder(vec![("head", head.clone())]).group(slower);
    /// let mut optimizer = builder.learning_rate(0.25).build()?;
    /// optimizer.commit(&(encoder.sqr()? + head.sqr()?)?.backward()?)?;
    /// assert_eq!(head.to_scalar::<f32>()?, 1.5); // 3 − 0.25 · 6
    /// assert_eq!(encoder.to_scalar::<f32>()?, 2.25); // 3 − 0.125 · 6
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn learning_rate_factor(mut self, factor: f64) -> Self {
        self.options.learning_rate_factor = factor;
        self
    }

    /// Sets a weight decay for these parameters, at least 0, in place of the optimizer's.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Group;
    ///
    /// let [weight, bias] = [Var::new(1f32, &Device::Cpu)?, Var::new(0f32, &Device::Cpu)?];
    /// let biases = Group::from(vec![("bias", bias)]).weight_decay(0.);
    /// let builder = AdamW::builder(vec![("weight", weight)]).weight_decay(0.1);
    /// let optimizer = builder.group(biases).build()?;
    /// let own = optimizer.groups().iter().map(|group| group.weight_decay);
    /// assert!(own.eq([None, Some(0.)])); // `None`: the optimizer's 0.1
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn weight_decay(mut self, weight_decay: f64) -> Self {
        self.options.weight_decay = Some(weight_decay);
        self
    }

    /// Freezes these parameters until [`Fused::set_group`](super::Fused::set_group) thaws them.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::{Commit, Group};
    ///
    /// let [base, adapter] = [Var::new(1f32, &Device::Cpu)?, Var::new(0f32, &Device::Cpu)?];
    /// let base = Group::from(vec![("base", base)]).frozen();
    /// let optimizer = AdamW::builder(vec![("adapter", adapter)]).group(base).build()?;
    /// let trained = optimizer.parameters().iter().map(|parameter| parameter.name.as_str());
    /// assert!(trained.eq(["adapter"]));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn frozen(mut self) -> Self {
        self.options.frozen = true;
        self
    }

    /// Keeps the moments of these parameters so, whatever [`FusedBuilder::moments`](super::FusedBuilder::moments) says: those of an
    /// embedding in `DType::F32`, for example, beside others in 8 bits. State that is loaded does not change it.
    ///
    /// ```
    /// use candle_core::{DType, Device, Var};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::{Group, Moments};
    ///
    /// let embedding = Var::zeros(4096, DType::F32, &Device::Cpu)?;
    /// let w = Var::zeros(4096, DType::F32, &Device::Cpu)?;
    /// let embedding = Group::from(vec![("embedding", embedding)]).moments(DType::F32);
    /// let builder = AdamW::builder(vec![("w", w)]).moments(Moments::EightBit);
    /// let optimizer = builder.group(embedding).build()?;
    /// assert_eq!(optimizer.state_bytes(), 2 * (4096 + 4 * 16) + 2 * 4 * 4096);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn moments(mut self, moments: impl Into<Moments>) -> Self {
        self.moments = Some(moments.into());
        self
    }

    /// Splits the group into the parameters for which `is_first` holds and the others. A missing name is passed as `""`.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Group;
    /// use candle_nn::{VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// // No decay for biases and norms, which are vectors.
    /// let (vectors, matrices) = Group::from(&varmap).partition(|_, var| var.rank() < 2);
    /// let builder = AdamW::builder(matrices.weight_decay(0.1));
    /// let optimizer = builder.group(vectors.weight_decay(0.)).build()?;
    /// assert_eq!(optimizer.groups().len(), 2);
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    pub fn partition(self, mut is_first: impl FnMut(&str, &Var) -> bool) -> (Self, Self) {
        let (options, moments) = (self.options, self.moments);
        let (first, second) = (self.parameters.into_iter())
            .partition(|parameter| is_first(&parameter.name, &parameter.var));
        [first, second]
            .map(|parameters| Self {
                parameters,
                options,
                moments,
            })
            .into()
    }

    /// Splits the group by name into the parameters that one of these patterns matches and the others; `*` stands for any characters, as
    /// in `"*.bias"` or `"encoder.*"`.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom::AdamW;
    /// use candle_headroom::optim::Group;
    /// use candle_nn::{VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu).pp("head"))?;
    /// let (biases, others) = Group::from(&varmap).matching(["*.bias"])?;
    /// let optimizer = AdamW::builder(others).group(biases.weight_decay(0.)).build()?;
    /// assert_eq!(optimizer.groups()[1].weight_decay, Some(0.));
    /// # Ok::<(), candle_headroom::Error>(())
    /// ```
    ///
    /// # Errors
    /// For a pattern that matches no parameter, such as a misspelt one ([`is_parameter`](crate::Error::is_parameter)).
    pub fn matching(
        self,
        patterns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<(Self, Self)> {
        let mut wanted = Patterns::default();
        wanted.add(patterns);
        wanted.check(self.parameters.iter().map(|p| p.name.as_str()))?;
        Ok(self.partition(|name, _| wanted.has(name)))
    }

    /// Names Vars without a name by their places, counted from `first`.
    pub(crate) fn named(self, first: usize) -> impl Iterator<Item = Parameter> {
        let named = (first..).zip(self.parameters);
        named.map(|(place, parameter)| match parameter.name.is_empty() {
            true => Parameter::new(place.to_string(), parameter.var),
            false => parameter,
        })
    }
}

impl From<Vec<Parameter>> for Group {
    fn from(parameters: Vec<Parameter>) -> Self {
        Self {
            parameters,
            ..Self::default()
        }
    }
}

impl<N: Into<String>> From<Vec<(N, Var)>> for Group {
    fn from(vars: Vec<(N, Var)>) -> Self {
        let named = vars.into_iter();
        Vec::from_iter(named.map(|(name, var)| Parameter::new(name, var))).into()
    }
}

impl From<Vec<Var>> for Group {
    fn from(vars: Vec<Var>) -> Self {
        Vec::from_iter(vars.into_iter().map(|var| ("", var))).into()
    }
}

impl From<&VarMap> for Group {
    fn from(varmap: &VarMap) -> Self {
        // A panic while the lock was held leaves a valid map.
        let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
        let vars = data.iter().map(|(name, var)| (name.clone(), var.clone()));
        let mut named: Vec<_> = vars.collect();
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
        named.into()
    }
}

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
