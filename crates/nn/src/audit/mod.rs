//! Which Vars receive a gradient, and whether it is the right one.
//!
//! A report has every floating-point Var of the map, once for each of its names. However an audit ends, the Vars have the values that
//! they had before. A gradient is called wrong only where the loss shows it at several step sizes.

mod moved;
mod report;
mod slopes;

use std::fmt;

use candle_core::Tensor;
use candle_nn::VarMap;

use crate::seeded;
use moved::{Values, vars};
pub use report::{Audit, AuditError, Audited, Received, Slope};
use slopes::{measure, scalar};

/// Checks the gradients of a loss: which Vars receive one ([`arrivals`](AuditBuilder::arrivals)), and whether it is the loss's slope
/// ([`slopes`](AuditBuilder::slopes)).
///
/// Meant for a unit test of a model, and for a look at one that does not learn. The closure returns the loss, a tensor with one
/// element. Nothing changes: all Vars of the map, running statistics included, are restored bit by bit, also after an error or a panic.
/// What the closure changes elsewhere is not.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::{Received, audit};
/// use candle_nn::{Module, VarBuilder, VarMap, linear, rms_norm};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let (norm, head) = (rms_norm(4, 1e-5, vb.pp("norm"))?, linear(4, 2, vb.pp("head"))?);
/// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
///
/// // The forward pass of candle's `RmsNorm` has no backward pass.
/// let report = audit(&varmap, || head.forward(&norm.forward(&x)?)?.sqr()?.mean_all()).slopes()?;
/// assert_eq!(report.count(Received::Right), 2);
/// let error = report.check().unwrap_err();
/// assert!(error.to_string().starts_with("no gradient for 1 of 3 parameters: norm: weight"));
/// # Ok::<(), candle_headroom_nn::AuditError>(())
/// ```
pub fn audit<F>(varmap: &VarMap, loss: F) -> AuditBuilder<'_, F>
where
    F: FnMut() -> candle_core::Result<Tensor>,
{
    AuditBuilder {
        varmap,
        loss,
        seed: 0,
    }
}

/// What [`audit`] checks. It ends with [`arrivals`](Self::arrivals) or [`slopes`](Self::slopes).
///
/// ```
/// use candle_core::{DType, Device};
/// use candle_headroom_nn::{Init, Received, VarBuilder, VarMap, audit};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let w = vb.get_with_hints(4, "w", Init::Const(1.))?;
/// let builder = audit(&varmap, || w.sqr()?.sum_all()).seed(7);
/// assert_eq!(builder.arrivals()?.count(Received::Finite), 1);
/// # Ok::<(), candle_headroom_nn::AuditError>(())
/// ```
#[must_use = "nothing runs before `arrivals()` or `slopes()`"]
pub struct AuditBuilder<'a, F> {
    varmap: &'a VarMap,
    loss: F,
    seed: u64,
}

impl<F: FnMut() -> candle_core::Result<Tensor>> AuditBuilder<'_, F> {
    /// The seed of the random directions, and of this crate's random layers such as [`Dropout`](crate::Dropout): the closure
    /// runs in a scope of [`seeded`]. The default is 0.
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom_nn::{Dropout, Init, VarBuilder, VarMap, audit};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let w = vb.get_with_hints(4, "w", Init::Const(1.))?;
    /// let dropout = Dropout::new(0.5);
    /// let loss = || dropout.forward(&w.sqr()?, true)?.sum_all();
    /// let report = audit(&varmap, loss).seed(7).arrivals()?;
    /// assert_eq!(report, audit(&varmap, loss).seed(7).arrivals()?); // the same masks
    /// # Ok::<(), candle_headroom_nn::AuditError>(())
    /// ```
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Differentiates the loss once, and reports which Vars received a gradient.
    ///
    /// A loss that depends on no Var is not an error: every Var is reported without a gradient. The numbers in the report are read
    /// from the device, one Var after the other.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_headroom_nn::{Module, Received, VarBuilder, VarMap, audit, linear};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let (body, head) = (linear(4, 4, vb.pp("body"))?, linear(4, 2, vb.pp("head"))?);
    /// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    /// let loss = || head.forward(&body.forward(&x)?.detach())?.sqr()?.mean_all(); // cut off
    /// let report = audit(&varmap, loss).arrivals()?;
    /// assert_eq!((report.count(Received::Nothing), report.count(Received::Finite)), (2, 2));
    /// assert_eq!(report.get("body.weight").expect("a Var").received, Received::Nothing);
    /// # Ok::<(), candle_headroom_nn::AuditError>(())
    /// ```
    ///
    /// # Errors
    /// [`AuditError::NotScalar`], and the errors of the closure and of the backward pass.
    pub fn arrivals(self) -> Result<Audit, AuditError> {
        arrivals(self.varmap, || seeded(self.seed, self.loss))
    }

    /// As [`arrivals`](Self::arrivals), and compares the gradients with the loss's slopes: its change where a Var is moved forth and
    /// back by a small step, in the direction of the gradient and in two random ones.
    ///
    /// Vars with gradients of about the same size are moved together, each direction in proportion to a Var's scale, the root of its
    /// mean square. Where the slopes do not agree, each half of the Vars is moved by itself, down to the Var that is wrong. A model
    /// without a wrong gradient costs some ten forward passes for each group of Vars, one of a few dozen Vars about a hundred; each
    /// Var that is wrong or undecided costs about ten more, times the number of halves down to it.
    ///
    /// - **Where**: near the present values, each moved by up to 1/64 of itself at random; a 0 by as much of the Var's scale, or of 0.1
    ///   in a Var of zeros. So a parameter that is initialised with zeros does not hide a wrong gradient before it, and a kink at 0 does
    ///   not count.
    /// - **Tolerance**: 1e-5 of a Var's slope in f64, 1e-3 in f32, 0.8 % in f16, 6 % in bf16, by the coarsest type of a Var and of the
    ///   loss, and the rounding errors of the loss, which are measured. A difference of more than twice that, the same one at several
    ///   step sizes, is [`Received::Wrong`]; [`Slope::within`] is what would have been seen.
    /// - **Randomness** is frozen: [`Dropout`](crate::Dropout) draws the same masks in each forward pass. candle_nn's own does not,
    ///   which is an error.
    /// - **Running statistics** and all other Vars of the map have the same values before each forward pass.
    /// - **Memory**: two copies of the Vars on their device, and about four f64 for each of their elements on the host.
    /// - A Var with several names is measured under the first one; under the others it stays [`Received::Finite`].
    ///
    /// It cannot find an error below the tolerance; one in a Var that is too small to measure; one in an operation that this batch
    /// does not reach, such as an expert that is not used; and one at a kink, which is [`Received::Undecided`]. It calls wrong what is
    /// so on purpose: a straight-through estimator, a gradient that is clipped or reversed within the model, a `detach` of one of two
    /// paths; name such Vars in [`Audit::check_except`].
    ///
    /// ```
    /// use candle_core::{DType, Device};
    /// use candle_headroom_nn::{Init, Received, VarBuilder, VarMap, audit};
    ///
    /// let varmap = VarMap::new();
    /// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    /// let w = vb.get_with_hints(4, "w", Init::Const(1.))?;
    /// let right = audit(&varmap, || w.exp()?.sum_all()).slopes()?;
    /// assert_eq!(right.count(Received::Right), 1);
    /// let wrong = audit(&varmap, || (w.exp()? * w.detach())?.sum_all()).slopes()?; // one of two paths
    /// assert_eq!(wrong.count(Received::Wrong), 1);
    /// assert!(wrong.check().unwrap_err().to_string().contains("the gradient of `w` is not the slope"));
    /// # Ok::<(), candle_headroom_nn::AuditError>(())
    /// ```
    ///
    /// # Errors
    /// As [`arrivals`](Self::arrivals), and [`AuditError::NotRepeatable`].
    pub fn slopes(mut self) -> Result<Audit, AuditError> {
        let mut loss = || seeded(self.seed, &mut self.loss);
        let mut audit = arrivals(self.varmap, &mut loss)?;
        measure(self.varmap, &mut loss, self.seed, &mut audit)?;
        Ok(audit)
    }
}

impl<F> fmt::Debug for AuditBuilder<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditBuilder").finish_non_exhaustive()
    }
}

fn arrivals(
    varmap: &VarMap,
    loss: impl FnOnce() -> candle_core::Result<Tensor>,
) -> Result<Audit, AuditError> {
    let _values = Values::save(varmap)?;
    let loss = scalar(loss)?;
    let gradients = loss.backward()?;
    // After the closure, which may have built the model.
    let vars = vars(varmap).into_iter();
    let floats = vars.filter(|(_, var)| !var.dtype().is_int());
    let audited = floats.map(|(name, var)| Audited::new(name, &var, gradients.get(&var)));
    Ok(Audit {
        vars: audited.collect::<candle_core::Result<_>>()?,
    })
}
