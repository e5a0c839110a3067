use std::sync::PoisonError;

use candle_core::{Tensor, Var};
use candle_nn::VarMap;

use super::names::is_statistic;
use super::report::{Audit, Audited};
use crate::batch::run_phase;
use crate::error::{LossError, Phase, Result};

/// Differentiates a loss and reports which Vars received a gradient. Changes nothing: parameters stay as they are, and running
/// statistics that the forward pass of a BatchNorm changes are restored, those of the Vars that the map holds when it begins.
///
/// Meant for a unit test of a model, and for a look at one that does not learn. The closure runs once and returns the loss, a
/// tensor with one element. A loss that depends on no Var is not an error: every Var is reported without a gradient. The
/// numbers in the report are read from the device, one Var after the other.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom::nn::{Received, audit};
/// use candle_nn::{Module, VarBuilder, VarMap, linear, rms_norm};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let (norm, head) = (rms_norm(4, 1e-5, vb.pp("norm"))?, linear(4, 2, vb.pp("head"))?);
/// let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
///
/// // The forward pass of candle's `RmsNorm` has no backward pass.
/// let report = audit(&varmap, || head.forward(&norm.forward(&x)?)?.sqr()?.mean_all())?;
/// assert_eq!(report.count(Received::Finite), 2);
/// assert_eq!(report.check().unwrap_err().names, ["norm.weight"]);
/// # Ok::<(), candle_headroom::Error>(())
/// ```
///
/// # Errors
/// [`LossError::NotScalar`], and the errors of the closure and of the backward pass.
pub fn audit(varmap: &VarMap, loss: impl FnOnce() -> candle_core::Result<Tensor>) -> Result<Audit> {
    let _statistics = Statistics::save(varmap)?;
    let loss = run_phase(Phase::Forward, loss)?;
    if loss.elem_count() != 1 {
        return Err(LossError::NotScalar(loss.shape().clone()).into());
    }
    let gradients = run_phase(Phase::Backward, || loss.backward())?;
    // After the closure, which may have built the model.
    let vars = named(varmap).into_iter();
    let audited = vars.map(|(name, var)| Audited::new(name, &var, gradients.get(&var)));
    Ok(Audit {
        vars: audited.collect::<Result<_>>()?,
    })
}

/// The floating-point Vars, sorted by name.
fn named(varmap: &VarMap) -> Vec<(String, Var)> {
    // A panic while the lock was held leaves a valid map.
    let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    let vars = data.iter().filter(|(_, var)| !var.dtype().is_int());
    let mut named: Vec<_> = vars
        .map(|(name, var)| (name.clone(), var.clone()))
        .collect();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    named
}

/// Running statistics with their values, which are restored at the end, also by a panic.
struct Statistics(Vec<(Var, Tensor)>);

impl Statistics {
    fn save(varmap: &VarMap) -> candle_core::Result<Self> {
        let vars = named(varmap)
            .into_iter()
            .filter(|(name, _)| is_statistic(name));
        let saved = vars.map(|(_, var)| Ok((var.clone(), var.as_detached_tensor().copy()?)));
        saved.collect::<candle_core::Result<_>>().map(Self)
    }
}

impl Drop for Statistics {
    fn drop(&mut self) {
        for (var, value) in &self.0 {
            if let Err(error) = var.set(value) {
                tracing::error!(%error, "running statistics could not be restored after an audit");
            }
        }
    }
}
