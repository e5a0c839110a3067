//! Normalization of rows, and of cells such as the channels of a picture.

pub mod cells;
pub mod groups;
pub mod rows;

use candle_core::Result;

use super::graph::{Backward, Gradients};
use super::kernel::rows_at_once;
pub use super::kernel::sum_type as statistics_type;

/// Number of rows of `width` elements that are summed together, before these sums are added up. It does not depend on the number of
/// threads, so neither do the sums.
pub fn rows_of_part(rows: usize, width: usize) -> usize {
    const MOST_PARTS: usize = 64;
    rows_at_once(width).max(rows.div_ceil(MOST_PARTS))
}

/// The gradients of an operation without output.
pub fn zeros<const N: usize>(given: &Backward<N>) -> Result<Gradients<N>> {
    let mut gradients = [const { None }; N];
    for ((gradient, input), needs) in gradients.iter_mut().zip(&given.inputs).zip(given.needs) {
        if needs {
            *gradient = Some(input.zeros_like()?);
        }
    }
    Ok(gradients)
}
