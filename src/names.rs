//! Parameters by name: BatchNorm's statistics, and patterns.

use crate::error::{Result, no_match};

/// The last parts of the names under which PyTorch and candle keep BatchNorm's running statistics.
const STATISTICS: [&str; 3] = ["running_mean", "running_var", "num_batches_tracked"];

/// Whether a parameter is a running statistic, which the forward pass changes and no gradient reaches.
pub(crate) fn is_statistic(name: &str) -> bool {
    let last = name.rsplit('.').next();
    last.is_some_and(|last| STATISTICS.contains(&last))
}

/// Names and patterns of parameters. `*` stands for any text, dots included, and for none; a pattern matches whole names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patterns(Vec<String>);

impl Patterns {
    pub(crate) fn add(&mut self, patterns: impl IntoIterator<Item = impl Into<String>>) {
        self.0.extend(patterns.into_iter().map(Into::into));
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, name))
    }

    /// Refuses a pattern that matches none of these names.
    pub(crate) fn check<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        let mut patterns = self.0.iter();
        match patterns.find(|pattern| !names.clone().any(|name| matches(pattern, name))) {
            Some(pattern) => Err(no_match(pattern)),
            None => Ok(()),
        }
    }
}

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
