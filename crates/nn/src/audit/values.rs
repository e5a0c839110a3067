use std::sync::PoisonError;

use candle_core::{Tensor, Var};
use candle_nn::VarMap;

/// All Vars of a map with their values, which are restored at the end, also by an error or a panic.
pub(super) struct Values(Vec<(Var, Tensor)>);

impl Values {
    pub(super) fn save(varmap: &VarMap) -> candle_core::Result<Self> {
        let vars = vars(varmap).into_iter();
        let saved = vars.map(|(_, var)| Ok((var.clone(), var.as_detached_tensor().copy()?)));
        saved.collect::<candle_core::Result<_>>().map(Self)
    }

    /// Sets all of them, also if one fails.
    pub(super) fn restore(&self) -> candle_core::Result<()> {
        let results = self.0.iter().map(|(var, value)| var.set(value));
        results.fold(Ok(()), Result::and)
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            tracing::error!(%error, "a Var could not be restored after an audit");
        }
    }
}

/// The Vars of a map, sorted by name.
pub(super) fn vars(varmap: &VarMap) -> Vec<(String, Var)> {
    // A panic while the lock was held leaves a valid map.
    let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    let vars = data.iter().map(|(name, var)| (name.clone(), var.clone()));
    let mut vars: Vec<_> = vars.collect();
    vars.sort_by(|(a, _), (b, _)| a.cmp(b));
    vars
}
