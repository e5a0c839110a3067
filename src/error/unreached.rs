//! [`UnreachedParameters`]: gradients that did not arrive.

use std::fmt::{self, Formatter};

use super::nn::by_module;

/// Words of the error by which its text is known.
pub(super) const UNREACHED: &str = "no gradient for";
/// Number of modules in the one-line form.
const LISTED: usize = 3;
/// Number of modules in the long form.
const LISTED_AT_LENGTH: usize = 40;

/// Trainable parameters received no gradient, so an update would not train them. Nothing has changed.
///
/// candle does not report this: [`backward`](candle_core::Tensor::backward) returns `Ok`, and the loss may still fall a little
/// by what the other parameters learn. Trainers check it before their first update, and
/// [`nn::audit`](crate::nn::audit()) at any time.
///
/// `{}` writes one line, `{:#}` and `{:?}` the long form with all modules, the likely [reasons](Self::reasons) and the
/// [remedies](Self::remedies). Modules that differ in a number only are one entry, as in `model.layers.*`.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::error::UnreachedParameters;
/// use candle_headroom::{AdamW, GradientAccumulator};
/// use candle_nn::{VarBuilder, VarMap, linear, ops::softmax_last_dim, Module};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let (hidden, head) = (linear(4, 8, vb.pp("hidden"))?, linear(8, 2, vb.pp("head"))?);
/// let optimizer = AdamW::builder(&varmap).learning_rate(1e-3).build()?;
/// let mut accumulator = GradientAccumulator::builder(optimizer).build()?;
///
/// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
/// let weights = softmax_last_dim(&hidden.forward(&x)?)?; // has no backward pass
/// accumulator.add(head.forward(&weights)?.sqr()?.mean_all()?, 3)?;
/// let error = accumulator.update().unwrap_err();
/// let unreached = error.downcast_ref::<UnreachedParameters>().expect("two of four");
/// assert_eq!(unreached.names, ["hidden.bias", "hidden.weight"]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreachedParameters {
    /// The names of the parameters without a gradient, in the optimizer's order. A Var without a name has its place in the
    /// optimizer's list.
    pub names: Vec<String>,
    /// The names of the other trainable parameters. BatchNorm's running statistics are not among them.
    pub others: Vec<String>,
    /// The number of updates in which they should have received a gradient; `None` from an audit, which makes no update.
    pub updates: Option<usize>,
}

impl UnreachedParameters {
    /// What has no backward pass in candle 0.11.1, and cuts off what lies before it without an error: functions of candle_nn and
    /// candle_core, and the types that call them.
    pub const WITHOUT_BACKWARD: &'static [&'static str] = &[
        "softmax_last_dim",
        "rms_norm",
        "layer_norm",
        "sdpa",
        "rope",
        "rope_i",
        "rope_thd",
        "flash_attn on the CPU",
        "QMatMul",
        "slice_set",
        "scatter_set",
        "scatter_add_set",
        "RmsNorm",
        "LayerNorm",
        "KvCache",
        "RotatingKvCache",
        "ConcatKvCache",
        "ScatteredKvCache",
        "InterleavedKvCache",
    ];

    /// Parameters without a gradient, and the other trainable ones.
    ///
    /// ```
    /// use candle_headroom::error::UnreachedParameters;
    ///
    /// let unreached = UnreachedParameters::new(["encoder.weight"], ["head.bias", "head.weight"]);
    /// assert_eq!(unreached.trainable(), 3);
    /// println!("{unreached:#}"); // with the likely reasons and the remedies
    /// ```
    pub fn new<N: Into<String>>(
        names: impl IntoIterator<Item = N>,
        others: impl IntoIterator<Item = N>,
    ) -> Self {
        Self {
            names: names.into_iter().map(Into::into).collect(),
            others: others.into_iter().map(Into::into).collect(),
            updates: None,
        }
    }

    /// Sets [`updates`](Self::updates).
    pub(crate) fn within(mut self, updates: usize) -> Self {
        self.updates = Some(updates);
        self
    }

    /// Returns the number of trainable parameters, with and without a gradient.
    ///
    /// ```
    /// use candle_headroom::error::UnreachedParameters;
    ///
    /// let unreached = UnreachedParameters::new(["encoder.weight"], ["head.bias", "head.weight"]);
    /// assert_eq!(unreached.trainable(), 3);
    /// ```
    pub fn trainable(&self) -> usize {
        self.names.len() + self.others.len()
    }

    /// Returns the likely reasons. Why a gradient did not arrive cannot be seen afterwards.
    ///
    /// ```
    /// use candle_headroom::error::UnreachedParameters;
    ///
    /// let unreached = UnreachedParameters::new(["encoder.weight"], ["head.weight"]);
    /// assert_eq!(unreached.reasons()[1], "the forward pass does not use them");
    /// ```
    pub fn reasons(&self) -> Vec<String> {
        let operations = Self::WITHOUT_BACKWARD.join(", ");
        let mut reasons = vec![
            format!(
                "an operation of candle without a backward pass lies between them and the loss: {operations}"
            ),
            "the forward pass does not use them".to_owned(),
            "a `detach`, a product with the number 0 (candle does not follow it), `round`, `floor`, `ceil`, `sign`, a cast to \
             integers, or a tensor made anew from their values cuts them off"
                .to_owned(),
        ];
        if self.others.is_empty() {
            reasons.push("the model uses other Vars than these".to_owned());
        }
        reasons
    }

    /// Returns what would help.
    ///
    /// ```
    /// use candle_headroom::error::UnreachedParameters;
    ///
    /// let unreached = UnreachedParameters::new(["encoder.weight"], ["head.weight"]);
    /// assert!(unreached.remedies()[1].contains("`.allow_unreached([…])`"));
    /// ```
    pub fn remedies(&self) -> Vec<String> {
        let mut remedies = vec![
            "write `use candle_headroom::nn as candle_nn;` at the top of the model's file: the same names with a backward pass; \
             for a whole crate, `candle-nn = { package = \"candle-headroom-nn\", … }` in its Cargo.toml"
                .to_owned(),
            "name parameters that are meant to receive none in `.allow_unreached([…])` of the trainer's builder, where `*` \
             stands for any text, or leave them out of the optimizer"
                .to_owned(),
        ];
        if self.updates.is_some() {
            let advice = "if a batch does not use every parameter, as in a mixture of experts, set `.reach_within(updates)`";
            remedies.push(advice.to_owned());
        }
        remedies
    }
}

impl fmt::Display for UnreachedParameters {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (count, all) = (self.names.len(), self.trainable());
        write!(f, "{UNREACHED} {count} of {all} parameters")?;
        match self.updates {
            None => {}
            Some(1) => f.write_str(" in their first update")?,
            Some(updates) => write!(f, " in their first {updates} updates")?,
        }
        let (names, others) = (self.names.iter(), self.others.iter());
        let modules = by_module(names.map(String::as_str), others.map(String::as_str));
        if f.alternate() {
            write_modules(f, &modules, LISTED_AT_LENGTH, ("\n  ", "\n  "))?;
            write_numbered(f, "likely reasons", &self.reasons())?;
            return write_numbered(f, "what would help", &self.remedies());
        }
        write_modules(f, &modules, LISTED, (": ", "; "))?;
        f.write_str(
            "; an operation without a backward pass (`softmax_last_dim`, `RmsNorm`, …) or a `detach` cuts them off, or the model \
             does not use them: write `use candle_headroom::nn as candle_nn;` in the model's file, or name those that need no \
             gradient in `allow_unreached`",
        )
    }
}

impl fmt::Debug for UnreachedParameters {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

impl std::error::Error for UnreachedParameters {}

/// Writes `most` modules, the first one after the first separator, and the number of the others.
fn write_modules(
    f: &mut Formatter<'_>,
    modules: &[impl fmt::Display],
    most: usize,
    (first, next): (&str, &str),
) -> fmt::Result {
    for (index, module) in modules.iter().take(most).enumerate() {
        let separator = if index == 0 { first } else { next };
        write!(f, "{separator}{module}")?;
    }
    match modules.len().saturating_sub(most) {
        0 => Ok(()),
        1 => write!(f, "{next}and 1 more module"),
        more => write!(f, "{next}and {more} more modules"),
    }
}

fn write_numbered(f: &mut Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
    write!(f, "\n  {title}")?;
    let mut lines = (1..).zip(lines);
    lines.try_for_each(|(number, line)| write!(f, "\n    {number}. {line}"))
}
