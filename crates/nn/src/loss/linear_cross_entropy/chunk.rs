//! How many rows of logits are computed at a time.

use candle_core::{DType, Result, Tensor};

use crate::kernel::sum_type;
use crate::scope::current;

/// More rows make the products no faster.
const MOST_ROWS: usize = 512;
/// With fewer rows the products are bound by reading the weight.
const LEAST_ROWS: usize = 64;
/// Smaller chunks save nothing worth their time.
const LEAST_LOGITS: usize = 1 << 18;

/// How many rows of hidden states (tokens, width) to multiply at a time: a power of two, or all if there are fewer, but at least 1. Whether
/// gradients of hidden states and of the weight are computed decides with the sizes.
///
/// Where the gradient of the weight is computed, its sum in candle's backward pass takes that gradient's size twice more, so
/// logits of its size do not raise the peak: `width` rows. Elsewhere logits take about as much as the hidden states (Liger's
/// rule). Both are limited to half of the room that the trainer's memory has left besides the gradients, but not below
/// [`LEAST_ROWS`]: a policy fills the room with samples, which would leave one row to a chunk.
pub fn chunk_rows(hidden: &Tensor, classes: usize, needs: [bool; 2]) -> Result<usize> {
    let (tokens, width) = hidden.dims2()?;
    let [of_hidden, of_weight] = needs.map(usize::from);
    let mut rows = match of_weight {
        1 => width,
        _ => tokens.saturating_mul(width) / classes,
    };
    rows = rows
        .clamp(LEAST_ROWS, MOST_ROWS)
        .max(LEAST_LOGITS / classes);
    if let Some(room) = current().and_then(|around| around.room(hidden.device())) {
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let mut of_number = sum_type(hidden.dtype()).size_in_bytes();
        let gradients = (of_hidden * tokens + of_weight * classes).saturating_mul(width);
        let room = room.saturating_sub(gradients.saturating_mul(of_number)) / 2;
        if !hidden.device().is_cpu() && matches!(hidden.dtype(), DType::F16 | DType::BF16) {
            // The gradients of logits are also rounded, for the products.
            of_number += hidden.dtype().size_in_bytes();
        }
        rows = rows.min((room / of_number / classes).max(LEAST_ROWS));
    }
    Ok((1 << rows.ilog2()).min(tokens.max(1)))
}
