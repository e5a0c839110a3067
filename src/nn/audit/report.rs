use candle_core::{DType, Tensor, Var};
use serde::{Deserialize, Serialize};

use super::names::{Patterns, is_statistic};
use crate::error::{Result, UnreachedParameters};

/// What a Var received from a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Received {
    /// No gradient.
    Nothing,
    /// A gradient with an infinity or a NaN.
    NotFinite,
    /// A gradient of zeros only.
    Zeros,
    /// A finite gradient that is not all zeros.
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
    /// The Euclidean norm of its gradient, computed in f32 for f16 and bf16, or in the gradient's own type; `None` without a
    /// gradient and for one that is not finite.
    pub norm: Option<f64>,
}

/// Which Vars received a gradient, from [`audit`](super::audit()).
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

    /// Fails if a Var received no gradient, for a unit test of a model. BatchNorm's statistics need none, and a gradient of
    /// zeros counts as received.
    ///
    /// # Errors
    /// [`UnreachedParameters`].
    pub fn check(&self) -> Result<(), UnreachedParameters> {
        self.check_allowing(&Patterns::default())
    }

    /// [`check`](Self::check) without the Vars that match one of these names or patterns, which are written as in
    /// [`allow_unreached`](crate::train::AdaptiveTrainerBuilder::allow_unreached).
    ///
    /// # Errors
    /// [`UnreachedParameters`], or [`ParameterError::NoMatch`](crate::error::ParameterError::NoMatch) for a pattern that
    /// matches no Var.
    pub fn check_except(
        &self,
        patterns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<()> {
        let mut allowed = Patterns::default();
        allowed.add(patterns);
        allowed.check(self.vars.iter().map(|var| var.name.as_str()))?;
        Ok(self.check_allowing(&allowed)?)
    }

    fn check_allowing(&self, allowed: &Patterns) -> Result<(), UnreachedParameters> {
        let trainable = self
            .vars
            .iter()
            .filter(|var| var.received != Received::Statistic);
        let is_unreached =
            |var: &&Audited| var.received == Received::Nothing && !allowed.has(&var.name);
        let (unreached, others): (Vec<_>, Vec<_>) = trainable.partition(is_unreached);
        if unreached.is_empty() {
            return Ok(());
        }
        let name = |var: &Audited| var.name.clone();
        let (names, others) = (
            unreached.into_iter().map(name),
            others.into_iter().map(name),
        );
        Err(UnreachedParameters::new(names, others))
    }
}

impl Audited {
    pub(super) fn new(name: String, var: &Var, gradient: Option<&Tensor>) -> Result<Self> {
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
        })
    }
}

fn examine(gradient: &Tensor) -> candle_core::Result<(Received, Option<f64>)> {
    if gradient.elem_count() == 0 {
        return Ok((Received::Zeros, Some(0.)));
    }
    let gradient = match gradient.dtype() {
        DType::F64 | DType::F32 => gradient.detach(),
        _ => gradient.detach().to_dtype(DType::F32)?,
    };
    // Zero times an infinity is NaN, and so is zero times NaN.
    if number(&(&gradient * 0.)?.sum_all()?)?.is_nan() {
        return Ok((Received::NotFinite, None));
    }
    let largest = gradient.abs()?.max_all()?;
    let scale = number(&largest)?;
    if scale == 0. {
        return Ok((Received::Zeros, Some(0.)));
    }
    // The squares of large numbers would be infinite in f32, and those of small ones 0.
    let squares = gradient.broadcast_div(&largest)?.sqr()?.sum_all()?;
    Ok((Received::Finite, Some(scale * number(&squares)?.sqrt())))
}

fn number(scalar: &Tensor) -> candle_core::Result<f64> {
    match scalar.dtype() {
        DType::F64 => scalar.to_scalar(),
        _ => scalar.to_scalar::<f32>().map(f64::from),
    }
}
