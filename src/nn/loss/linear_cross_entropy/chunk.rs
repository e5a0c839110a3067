//! How many rows of logits are computed at a time.

use candle_core::{DType, Tensor};

use crate::memory::ambient;
use crate::nn::kernel::sum_type;

/// More rows make the products no faster.
const MOST_ROWS: usize = 512;
/// With fewer rows the products are bound by reading the weight.
const LEAST_ROWS: usize = 64;
/// Smaller chunks save nothing worth their time.
const LEAST_LOGITS: usize = 1 << 18;

/// The sizes that decide.
pub struct Sizes {
    pub tokens: usize,
    pub classes: usize,
    pub width: usize,
    /// Whether gradients of hidden states and of the weight are computed.
    pub needs: [bool; 2],
}

impl Sizes {
    /// A power of two, or `asked`; at least 1.
    ///
    /// Where the gradient of the weight is computed, its sum in candle's backward pass takes that gradient's size twice more, so
    /// logits of its size do not raise the peak: `width` rows. Elsewhere logits take about as much as the hidden states (Liger's
    /// rule). Both are limited to half of the room that the trainer's memory has left besides the gradients.
    pub fn chunk_rows(&self, hidden: &Tensor, asked: Option<usize>) -> usize {
        if let Some(rows) = asked {
            return rows.clamp(1, self.tokens.max(1));
        }
        let classes = self.classes.max(1);
        let rows = match self.needs {
            [_, true] => self.width,
            _ => self.tokens.saturating_mul(self.width) / classes,
        };
        let rows = rows
            .clamp(LEAST_ROWS, MOST_ROWS)
            .max(LEAST_LOGITS / classes);
        let rows = match self.room(hidden) {
            // Not fewer: what is left of the room becomes less the more samples a policy fits in.
            Some(room) => rows.min((room / bytes_of_logit(hidden) / classes).max(LEAST_ROWS)),
            None => rows,
        };
        (1 << rows.ilog2()).min(self.tokens.max(1))
    }

    /// Bytes for a chunk of logits; `None` if nothing bounds them.
    fn room(&self, hidden: &Tensor) -> Option<usize> {
        let memory = ambient().filter(|memory| memory.device().same_device(hidden.device()))?;
        let room = usize::try_from(memory.room()?).unwrap_or(usize::MAX);
        let [of_hidden, of_weight] = self.needs.map(usize::from);
        let rows = of_hidden * self.tokens + of_weight * self.classes;
        let gradients = rows.saturating_mul(self.width * sum_type(hidden.dtype()).size_in_bytes());
        Some(room.saturating_sub(gradients) / 2)
    }
}

/// On CUDA the gradients of logits are also rounded to f16 and bf16, for the products.
fn bytes_of_logit(hidden: &Tensor) -> usize {
    let bytes = sum_type(hidden.dtype()).size_in_bytes();
    match hidden.dtype() {
        DType::F16 | DType::BF16 if !hidden.device().is_cpu() => {
            bytes + hidden.dtype().size_in_bytes()
        }
        _ => bytes,
    }
}
