use std::io;

use crate::error::Error;
use crate::error::classify::AnyError;

/// Number of parameters that are listed.
const LISTED: usize = 3;

/// Without the feature there are no such errors.
pub fn unwrap(error: io::Error) -> Result<Error, io::Error> {
    Err(error)
}

/// Without the feature there are no regions.
pub fn is_second_run(_: &AnyError) -> bool {
    false
}

/// Without the feature there are no such errors.
pub fn is_index_range(_: &AnyError) -> bool {
    false
}

/// Without the feature there are no such errors.
pub fn shown(_: &AnyError) -> Option<&AnyError> {
    None
}

/// Without the feature, the first names in one entry.
pub fn by_module<'a>(
    names: impl Iterator<Item = &'a str>,
    others: impl Iterator<Item = &'a str>,
) -> Vec<String> {
    let names: Vec<_> = names.collect();
    let listed: Vec<_> = names.iter().take(LISTED).copied().collect();
    let more = if names.len() > LISTED { ", …" } else { "" };
    let (listed, all) = (listed.join(", "), names.len() + others.count());
    vec![format!("{listed}{more} ({} of {all})", names.len())]
}
