//! What an audit has found, as values, as text and as an error.

use std::fmt::{self, Formatter};
use std::io;

use candle_core::{Error, Shape, Tensor, Var};
use serde::{Deserialize, Serialize};

use super::moved::{norm, numbers};
use crate::modules::by_module;

/// What a Var received from a backward pass. [`Wrong`](Self::Wrong), [`Undecided`](Self::Undecided), [`Right`](Self::Right) and
/// [`TooSmall`](Self::TooSmall) are results of [`slopes`](super::AuditBuilder::slopes): the worst of three directions, but a direction
/// that is too small to measure does not count where another is not.
///
/// ```
/// use candle_headroom_nn::Received;
///
/// let mut found = [Received::Right, Received::Nothing, Received::Wrong];
/// found.sort(); // what is worse comes first
/// assert_eq!(found, [Received::Nothing, Received::Wrong, Received::Right]);
/// assert_eq!(found[0].to_string(), "no gradient");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Received {
    /// No gradient.
    Nothing,
    /// A gradient with an infinity or a NaN.
    NotFinite,
    /// A gradient that claims another slope than the loss has, by the same difference at several step sizes.
    Wrong,
    /// A gradient whose slope differs from the loss's by another amount at each step size: the loss has a kink (`max`, `relu`, `abs`)
    /// or a jump there, or is not finite a step away.
    Undecided,
    /// A gradient of zeros only. If slopes were compared, the loss does not depend on the Var nearby.
    Zeros,
    /// The slope of the loss.
    Right,
    /// A gradient that claims a slope that is too small to be measured, as the loss's is.
    TooSmall,
    /// A finite gradient that is not all zeros, whose slope was not compared.
    Finite,
    /// No gradient, and none is needed: a running statistic of a BatchNorm, by its name (`running_mean`, `running_var`,
    /// `num_batches_tracked`).
    Statistic,
}

/// A Var of an [`Audit`].
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{Init, Received, VarBuilder, VarMap, audit};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let w = vb.get_with_hints((2, 2), "w", Init::Const(1.))?;
/// let report = audit(&varmap, || w.sum_all()).arrivals()?;
/// let var = report.get("w").expect("a Var");
/// assert_eq!((var.shape.as_slice(), var.received), (&[2, 2][..], Received::Finite));
/// assert_eq!(var.norm, Some(2.)); // √(1 + 1 + 1 + 1)
/// assert!(var.slope.is_none()); // not asked for
/// # Ok::<(), candle_headroom_nn::AuditError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Audited {
    /// Its name in the `VarMap`.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What it received.
    pub received: Received,
    /// The Euclidean norm of its gradient; `None` without a gradient and for one that is not finite.
    pub norm: Option<f64>,
    /// The gradient beside the loss's slope; `None` if it was not asked for, or there is no finite gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slope: Option<Slope>,
}

/// Which Vars received a gradient, and whether it is right, from [`audit`](super::audit()).
///
/// `{}` is grouped by module, what is wrong first; `{:#}` has a line for each Var. Both begin with the counts.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Module, VarBuilder, VarMap, audit, linear};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let head = linear(4, 2, vb.pp("head"))?;
/// linear(4, 4, vb.pp("pooler"))?; // this loss does not use it
/// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
/// let report = audit(&varmap, || head.forward(&x)?.sqr()?.mean_all()).arrivals()?;
/// let text = report.to_string();
/// assert!(text.starts_with("4 Vars: no gradient 2, finite 2\nno gradient\n  pooler: bias, weight (2 of 2)"));
/// # Ok::<(), candle_headroom_nn::AuditError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Audit {
    /// The floating-point Vars, sorted by name.
    pub vars: Vec<Audited>,
}

impl Audit {
    /// Returns the Vars that received this.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::{Module, Received, VarBuilder, VarMap, audit, linear};
    /// #
    /// # let varmap = VarMap::new();
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// # let head = linear(4, 2, vb.pp("head"))?;
    /// # linear(4, 4, vb.pp("pooler"))?; // this loss does not use it
    /// # let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    /// let report = audit(&varmap, || head.forward(&x)?.sqr()?.mean_all()).arrivals()?;
    /// let names: Vec<_> = report.of(Received::Nothing).map(|var| &var.name).collect();
    /// assert_eq!(names, ["pooler.bias", "pooler.weight"]);
    /// # Ok::<(), candle_headroom_nn::AuditError>(())
    /// ```
    pub fn of(&self, received: Received) -> impl Iterator<Item = &Audited> {
        self.vars.iter().filter(move |var| var.received == received)
    }

    /// Returns the number of Vars that received this.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::{Module, Received, VarBuilder, VarMap, audit, linear};
    /// #
    /// # let varmap = VarMap::new();
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// # let head = linear(4, 2, vb.pp("head"))?;
    /// # linear(4, 4, vb.pp("pooler"))?; // this loss does not use it
    /// # let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    /// let report = audit(&varmap, || head.forward(&x)?.sqr()?.mean_all()).arrivals()?;
    /// assert_eq!(report.count(Received::Nothing), 2); // `pooler.weight` and `pooler.bias`
    /// # Ok::<(), candle_headroom_nn::AuditError>(())
    /// ```
    pub fn count(&self, received: Received) -> usize {
        self.of(received).count()
    }

    /// Returns the Var of this name.
    ///
    /// ```
    /// # use candle_core::{DType, Device, Tensor};
    /// # use candle_headroom_nn::{Module, Received, VarBuilder, VarMap, audit, linear};
    /// #
    /// # let varmap = VarMap::new();
    /// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// # let head = linear(4, 2, vb.pp("head"))?;
    /// # linear(4, 4, vb.pp("pooler"))?; // this loss does not use it
    /// # let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    /// let report = audit(&varmap, || head.forward(&x)?.sqr()?.mean_all()).arrivals()?;
    /// assert_eq!(report.get("head.weight").expect("a Var").received, Received::Finite);
    /// assert!(report.get("body.weight").is_none());
    /// # Ok::<(), candle_headroom_nn::AuditError>(())
    /// ```
    pub fn get(&self, name: &str) -> Option<&Audited> {
        self.vars.iter().find(|var| var.name == name)
    }

    /// Fails if a Var received no gradient or a wrong one, for a unit test of a model. BatchNorm's statistics need none, a gradient of
    /// zeros counts as received, and [`Received::Undecided`] is not wrong.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::{Module, VarBuilder, VarMap, audit, linear};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let head = linear(4, 2, vb.pp("head"))?;
    /// linear(4, 4, vb.pp("pooler"))?; // this loss does not use it
    /// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    /// let report = audit(&varmap, || head.forward(&x)?.sqr()?.mean_all()).arrivals()?;
    /// let error = report.check().unwrap_err();
    /// assert!(error.to_string().starts_with("no gradient for 2 of 4 parameters: pooler: bias, weight"));
    /// # Ok::<(), candle_headroom_nn::AuditError>(())
    /// ```
    ///
    /// # Errors
    /// [`AuditError::Unreached`], or [`AuditError::Wrong`].
    pub fn check(&self) -> Result<(), AuditError> {
        self.check_allowing(&[])
    }

    /// [`check`](Self::check) without the Vars that match one of these names or patterns, in which `*` stands for any text.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::{Module, Received, VarBuilder, VarMap, audit, linear};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let head = linear(4, 2, vb.pp("head"))?;
    /// linear(4, 4, vb.pp("pooler"))?; // this loss does not use it
    /// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    /// let report = audit(&varmap, || head.forward(&x)?.sqr()?.mean_all()).arrivals()?;
    /// assert_eq!(report.get("head.weight").expect("a Var").received, Received::Finite);
    /// assert_eq!(report.count(Received::Nothing), 2);
    /// report.check_except(["pooler.*"])?;
    /// # Ok::<(), candle_headroom_nn::AuditError>(())
    /// ```
    ///
    /// # Errors
    /// As [`check`](Self::check), or [`AuditError::NoMatch`] for a pattern that matches no Var.
    pub fn check_except(
        &self,
        patterns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<(), AuditError> {
        let allowed: Vec<String> = patterns.into_iter().map(Into::into).collect();
        let is_known = |pattern: &String| self.vars.iter().any(|var| matches(pattern, &var.name));
        if let Some(unknown) = allowed.iter().find(|pattern| !is_known(pattern)) {
            return Err(AuditError::NoMatch(unknown.clone()));
        }
        self.check_allowing(&allowed)
    }

    fn check_allowing(&self, allowed: &[String]) -> Result<(), AuditError> {
        let is_allowed = |name: &str| allowed.iter().any(|pattern| matches(pattern, name));
        let name = |var: &Audited| var.name.clone();
        let trainable = self
            .vars
            .iter()
            .filter(|var| var.received != Received::Statistic);
        let is_unreached =
            |var: &&Audited| var.received == Received::Nothing && !is_allowed(&var.name);
        let (unreached, others): (Vec<_>, Vec<_>) = trainable.partition(is_unreached);
        if !unreached.is_empty() {
            return Err(AuditError::Unreached {
                names: unreached.into_iter().map(name).collect(),
                others: others.into_iter().map(name).collect(),
            });
        }
        let wrong = self.of(Received::Wrong).map(name);
        let wrong: Vec<_> = wrong.filter(|name| !is_allowed(name)).collect();
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(AuditError::Wrong(wrong)),
        }
    }
}

impl Audited {
    pub(super) fn new(
        name: String,
        var: &Var,
        gradient: Option<&Tensor>,
    ) -> candle_core::Result<Self> {
        let (received, norm) = match gradient {
            Some(gradient) => examine(gradient)?,
            None if is_statistic(&name) => (Received::Statistic, None),
            None => (Received::Nothing, None),
        };
        Ok(Self {
            shape: var.dims().to_vec(),
            name,
            received,
            norm,
            slope: None,
        })
    }
}

fn examine(gradient: &Tensor) -> candle_core::Result<(Received, Option<f64>)> {
    let norm = norm(&numbers(gradient)?);
    Ok(match norm {
        0. => (Received::Zeros, Some(0.)),
        norm if norm.is_finite() => (Received::Finite, Some(norm)),
        _ => (Received::NotFinite, None),
    })
}

/// The loss's slope in one direction, from a gradient and from the loss itself, for a change of length 1 of the Vars that were moved:
/// in the direction of the gradient, if none of the random ones is worse.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{Init, VarBuilder, VarMap, audit};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let w = vb.get_with_hints(4, "w", Init::Const(1.))?;
/// let report = audit(&varmap, || w.exp()?.sum_all()).slopes()?;
/// let slope = report.get("w").expect("a Var").slope.expect("a slope");
/// let measured = slope.measured.expect("a finite loss");
/// assert!((slope.claimed / measured - 1.).abs() < 0.01);
/// assert_eq!(slope.vars, 1);
/// # Ok::<(), candle_headroom_nn::AuditError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Slope {
    /// The slope that the gradient claims. In the direction of one Var's gradient, this is the gradient's norm.
    pub claimed: f64,
    /// The slope that was measured; `None` if the loss was not finite at any step.
    pub measured: Option<f64>,
    /// The least error that would have been seen in this direction, in proportion to the slope that one Var's gradient claims; `None`
    /// unless the gradient is right.
    pub within: Option<f64>,
    /// The number of Vars that were moved together: 1, unless the gradient is right.
    pub vars: usize,
}

impl Slope {
    /// Returns the claimed slope divided by the measured one, such as 0.25 for a gradient that is four times too small; `None` if
    /// nothing was measured, or 0.
    ///
    /// ```
    /// use candle_headroom_nn::Slope;
    ///
    /// let mut slope = Slope::default();
    /// slope.claimed = 1.;
    /// assert_eq!(slope.factor(), None); // not measured
    /// slope.measured = Some(4.);
    /// assert_eq!(slope.factor(), Some(0.25));
    /// ```
    pub fn factor(&self) -> Option<f64> {
        let measured = self.measured.filter(|measured| *measured != 0.);
        measured.map(|measured| self.claimed / measured)
    }
}

impl fmt::Display for Slope {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "claimed {:.3e}", self.claimed)?;
        if let Some(measured) = self.measured {
            write!(f, ", measured {measured:.3e}")?;
        }
        match self.within {
            Some(within) if self.vars > 1 => {
                write!(f, ", within {within:.0e}, {} Vars together", self.vars)
            }
            Some(within) => write!(f, ", within {within:.0e}"),
            None => Ok(()),
        }
    }
}

/// The last parts of the names under which PyTorch and candle keep BatchNorm's running statistics.
const STATISTICS: [&str; 3] = ["running_mean", "running_var", "num_batches_tracked"];

/// Whether a Var is a running statistic, which the forward pass changes and no gradient reaches.
fn is_statistic(name: &str) -> bool {
    let last = name.rsplit('.').next();
    last.is_some_and(|last| STATISTICS.contains(&last))
}

/// Whether a pattern matches a whole name. `*` stands for any text, dots included, and for none.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    // The earliest place of each part leaves the most for the others.
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// What is wrong comes first.
const SECTIONS: [(Received, &str); 9] = [
    (Received::Nothing, "no gradient"),
    (Received::NotFinite, "not finite"),
    (Received::Wrong, "wrong"),
    (Received::Undecided, "undecided"),
    (Received::Zeros, "all zeros"),
    (Received::TooSmall, "too small to measure"),
    (Received::Finite, "finite"),
    (Received::Right, "right"),
    (Received::Statistic, "statistic"),
];

impl fmt::Display for Received {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let section = SECTIONS.iter().find(|(received, _)| received == self);
        f.pad(section.map_or("", |(_, text)| text))
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} Vars", self.vars.len())?;
        for (index, received) in self.sections().enumerate() {
            let separator = if index == 0 { ": " } else { ", " };
            write!(f, "{separator}{received} {}", self.count(received))?;
        }
        for received in self.sections() {
            write!(f, "\n{received}")?;
            match f.alternate() || matches!(received, Received::Wrong | Received::Undecided) {
                true => self.write_vars(received, f)?,
                false => self.write_modules(received, f)?,
            }
        }
        Ok(())
    }
}

impl Audit {
    /// What at least one Var received.
    fn sections(&self) -> impl Iterator<Item = Received> {
        let sections = SECTIONS.into_iter().map(|(received, _)| received);
        sections.filter(|received| self.of(*received).next().is_some())
    }

    fn write_vars(&self, received: Received, f: &mut Formatter<'_>) -> fmt::Result {
        let names = self.vars.iter().map(|var| var.name.chars().count());
        let shapes = self.vars.iter().map(|var| format!("{:?}", var.shape).len());
        let (name, shape) = (names.max().unwrap_or(0), shapes.max().unwrap_or(0));
        for var in self.of(received) {
            let text = format!("{:?}", var.shape);
            write!(f, "\n  {:name$}  ", var.name)?;
            match var.norm {
                Some(norm) => write!(f, "{text:shape$}  norm {norm:.3e}")?,
                None => f.write_str(&text)?,
            }
            if let Some(slope) = var.slope {
                write!(f, "  {slope}")?;
                let factor = slope.factor().filter(|_| received == Received::Wrong);
                factor.map_or(Ok(()), |factor| write!(f, ", {factor:.4} times"))?;
            }
        }
        Ok(())
    }

    fn write_modules(&self, received: Received, f: &mut Formatter<'_>) -> fmt::Result {
        let names = self.of(received).map(|var| var.name.as_str());
        let others = self.vars.iter().filter(|var| var.received != received);
        for modules in by_module(names, others.map(|var| var.name.as_str())) {
            write!(f, "\n  {modules}")?;
            if !matches!(received, Received::Finite | Received::Right) {
                continue;
            }
            let is_of_group = |var: &&Audited| modules.names.contains(&var.name.as_str());
            let norms = self.of(received).filter(is_of_group);
            let mut norms: Vec<f64> = norms.filter_map(|var| var.norm).collect();
            norms.sort_by(f64::total_cmp);
            match norms.as_slice() {
                [] => {}
                [norm] => write!(f, ", norm {norm:.3e}")?,
                [least, .., largest] => write!(f, ", norms {least:.3e} to {largest:.3e}")?,
            }
        }
        Ok(())
    }
}

/// Number of modules in the text.
const LISTED: usize = 3;

/// An audit cannot be made, or found something wrong.
///
/// In a function that returns candle's errors, `?` puts it inside an [`io::Error`] of theirs, from which it can be downcast.
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{AuditError, Init, VarBuilder, VarMap, audit};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let w = vb.get_with_hints(4, "w", Init::Const(1.))?;
/// let error = audit(&varmap, || w.sqr()).arrivals().unwrap_err();
/// assert!(matches!(error, AuditError::NotScalar(_)));
/// assert!(error.to_string().starts_with("the loss has shape [4]: reduce it to one number"));
/// # Ok::<(), candle_headroom_nn::AuditError>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The loss is not a single number, but has this shape.
    #[error("the loss has shape {0:?}: reduce it to one number with `mean_all()` or `sum_all()`")]
    NotScalar(Shape),
    /// Two forward passes with the same values gave these two losses.
    #[error(
        "the loss is {0} and then {1} with the same parameters: draw random numbers by `nn::Dropout` and in `nn::seeded`, and keep what a forward pass changes in the `VarMap`"
    )]
    NotRepeatable(f64, f64),
    /// Vars received no gradient.
    #[error(
        "no gradient for {} of {} parameters: {}; an operation without a backward pass (`softmax_last_dim`, `RmsNorm`, …) or a `detach` cuts them off, or the model does not use them",
        .names.len(), .names.len() + .others.len(), listed(.names, .others)
    )]
    #[non_exhaustive]
    Unreached {
        /// The names of the Vars without a gradient.
        names: Vec<String>,
        /// The names of the others, without BatchNorm's running statistics.
        others: Vec<String>,
    },
    /// The gradients of these Vars are not the slopes of the loss.
    #[error(
        "the gradient of `{}` is not the slope of the loss: print the audit with `{{:#}}`; an operation between it and the loss has a wrong backward pass, as `conv1d` and `max_pool2d` of candle's tensors: `tensor.with_gradients()` of `candle_headroom::nn` has right ones",
        .0.join("`, `")
    )]
    Wrong(Vec<String>),
    /// No Var has a name that matches this pattern.
    #[error("no Var has a name that matches `{0}`; `*` stands for any text, as in `pooler.*`")]
    NoMatch(String),
    /// An error of the closure or of the backward pass.
    #[error("{0}")]
    Candle(Error),
}

fn listed(names: &[String], others: &[String]) -> String {
    let (names, others) = (names.iter(), others.iter());
    let modules = by_module(names.map(String::as_str), others.map(String::as_str));
    let modules: Vec<String> = modules.iter().map(ToString::to_string).collect();
    let listed = modules.iter().take(LISTED).map(String::as_str);
    let listed = listed.collect::<Vec<_>>().join("; ");
    match modules.len().saturating_sub(LISTED) {
        0 => listed,
        more => format!("{listed}; and {more} more"),
    }
}

impl From<Error> for AuditError {
    fn from(error: Error) -> Self {
        Self::Candle(error)
    }
}

impl From<AuditError> for Error {
    fn from(error: AuditError) -> Self {
        match error {
            AuditError::Candle(error) => error,
            own => Self::Io(io::Error::other(own)),
        }
    }
}
