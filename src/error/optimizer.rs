//! [`StateError`]: saved state that does not fit.

/// Saved state does not fit the optimizer; everything that does not fit is listed. Nothing has changed.
#[derive(Debug, Clone, Default, PartialEq, thiserror::Error)]
#[error(
    "the saved state does not fit this optimizer{}{}{}",
    list("missing", .missing), list("unexpected", .unexpected), list("unfit", .unfit)
)]
#[non_exhaustive]
pub struct StateError {
    /// Tensors that the optimizer needs and the state does not have.
    pub missing: Vec<String>,
    /// Tensors that the state has and the optimizer does not know.
    pub unexpected: Vec<String>,
    /// Entries that are not what the optimizer needs, each with what is wrong.
    pub unfit: Vec<String>,
}

impl StateError {
    pub(crate) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.unfit.is_empty()
    }
}

fn list(what: &str, entries: &[String]) -> String {
    match entries {
        [] => String::new(),
        _ => format!("; {what}: {}", entries.join(", ")),
    }
}
