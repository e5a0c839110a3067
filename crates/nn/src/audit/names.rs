//! Vars by name: BatchNorm's statistics, and patterns.

/// The last parts of the names under which PyTorch and candle keep BatchNorm's running statistics.
const STATISTICS: [&str; 3] = ["running_mean", "running_var", "num_batches_tracked"];

/// Whether a Var is a running statistic, which the forward pass changes and no gradient reaches.
pub(super) fn is_statistic(name: &str) -> bool {
    let last = name.rsplit('.').next();
    last.is_some_and(|last| STATISTICS.contains(&last))
}

/// Whether a pattern matches a whole name. `*` stands for any text, dots included, and for none.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
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
