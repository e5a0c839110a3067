use std::error::Error as StdError;

/// Without the types there is nothing to recognise.
pub(in crate::error) fn status(_: &(dyn StdError + 'static)) -> Option<String> {
    None
}
