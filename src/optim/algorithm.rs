use candle_nn::ParamsAdamW;

use super::rule::{ParamsAdafactor, ParamsAdam, ParamsLion, ParamsSgd, Rule};

/// An update rule, named by the type of its hyper-parameters. Only this crate implements it.
///
/// ```
/// use candle_headroom::Result;
/// use candle_headroom::optim::{Algorithm, Fused, Group};
///
/// fn build<A: Algorithm>(parameters: Group, params: A) -> Result<Fused<A>> {
///     Fused::builder(parameters).params(params).build()
/// }
/// ```
pub trait Algorithm: Rule {}

impl Algorithm for ParamsAdafactor {}
impl Algorithm for ParamsAdam {}
impl Algorithm for ParamsAdamW {}
impl Algorithm for ParamsLion {}
impl Algorithm for ParamsSgd {}
