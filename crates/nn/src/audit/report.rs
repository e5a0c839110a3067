use std::fmt::{self, Formatter};

use candle_core::{Tensor, Var};
use serde::{Deserialize, Serialize};

use super::error::AuditError;
use super::moved::{norm, numbers};

/// What a Var received from a backward pass. [`Wrong`](Self::Wrong), [`Undecided`](Self::Undecided), [`Right`](Self::Right) and
/// [`TooSmall`](Self::TooSmall) are results of [`slopes`](super::AuditBuilder::slopes): the worst of three directions, but a direction
/// that is too small to measure does not count where another is not.
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Audit {
    /// The floating-point Vars, sorted by name.
    pub vars: Vec<Audited>,
}

impl Audit {
    /// Returns the Vars that received this.
    pub fn of(&self, received: Received) -> impl Iterator<Item = &Audited> {
        self.vars.iter().filter(move |var| var.received == received)
    }

    /// Returns the number of Vars that received this.
    pub fn count(&self, received: Received) -> usize {
        self.of(received).count()
    }

    /// Returns the Var of this name.
    pub fn get(&self, name: &str) -> Option<&Audited> {
        self.vars.iter().find(|var| var.name == name)
    }

    /// Fails if a Var received no gradient or a wrong one, for a unit test of a model. BatchNorm's statistics need none, a gradient of
    /// zeros counts as received, and [`Received::Undecided`] is not wrong.
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
