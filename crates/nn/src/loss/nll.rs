use candle_core::{Result, Tensor, bail};

use super::{Targets, Total};
use crate::graph::record_lean;
use crate::kernel::sum_type;

/// The negative of the logarithms of probabilities (N, C) at the classes (N), averaged over the rows that count: as
/// [`candle_nn::loss::nll`].
///
/// Targets are u8, u32 or i64. A row whose target is the largest value of its type, for example `u32::MAX`, does not count: it adds
/// nothing to the sum, gets no gradient, and the mean is over the others, as in [`cross_entropy`](super::cross_entropy()). For f16 and
/// bf16 the loss is f32, as is its sum.
///
/// It keeps nothing of the input. The graph holds the targets.
///
/// # Errors
/// If the shapes do not match, for targets of another type, or on the CPU if a target is not below C; the message names the row. On
/// other devices such a target is not noticed.
pub fn nll(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    let &[rows, classes] = inp.dims() else {
        bail!("nll expects an input of rank 2, got {:?}", inp.shape());
    };
    if inp.elem_count() == 0 {
        bail!("nll of no rows or classes, got {:?}", inp.shape());
    }
    let targets = Targets::new(target, rows, inp.device())?;
    let (dtype, device, wide) = (inp.dtype(), inp.device().clone(), sum_type(inp.dtype()));
    let total = Total::of(&targets, classes, wide)?;
    let places = targets.tensor().unsqueeze(1)?.contiguous()?;
    let chosen = inp.detach().contiguous()?.gather(&places, 1)?;
    let loss = total.mean(&chosen.to_dtype(wide)?.sum_all()?.neg()?)?;
    record_lean("nll", [inp], loss, move |gradient, _| {
        let slope = total.mean(&gradient)?.neg()?.to_dtype(dtype)?;
        let slopes = slope.broadcast_as((rows, 1))?.contiguous()?;
        let zeros = Tensor::zeros((rows, classes), dtype, &device)?;
        Ok([Some(zeros.scatter_add(&places, &slopes, 1)?)])
    })
}
