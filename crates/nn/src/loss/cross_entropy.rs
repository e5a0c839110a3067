use candle_core::{D, Result, Shape, Tensor, bail};

use super::targets::{Targets, Total};
use crate::graph::{Backward, record, record_lean};
use crate::kernel::{self, Extent, Kernel, Number, Plan, dense, max_of, sum_of, sum_type};
use crate::ops::log_softmax;
use crate::recompute::note_logits;

/// Cross-entropy of logits (N, C) and classes (N), averaged over the rows that count: as [`candle_nn::loss::cross_entropy`], in one
/// operation.
///
/// Targets are u8, u32 or i64. A row whose target is the largest value of its type, for example `u32::MAX`, does not count: it adds
/// nothing to the sum, gets no gradient, and the mean is over the others, as in [`linear_cross_entropy`](super::linear_cross_entropy())
/// and PyTorch (candle divides by N). The loss is 0 if no row counts. For f16 and bf16 it is f32, as are all sums.
///
/// It keeps the logarithm of each row's sum of e^(x − max): N numbers, f64 for f64 and f32 for all others. The graph also holds the
/// logits and the targets.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_headroom_nn::loss::cross_entropy;
///
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::zeros((3, 4), DType::F32, &Device::Cpu)?; // all classes are as likely
/// let targets = Tensor::new(&[0u32, 3, u32::MAX], &Device::Cpu)?; // the last row is padding
/// let loss = cross_entropy(&logits, &targets)?.to_scalar::<f32>()?;
/// assert!((loss - 4f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If the shapes do not match, or on the CPU if a target is not below C; the message names the row. On CUDA a target out of range is
/// found without waiting for the device: the loss is NaN, and so is the gradient of that row. On Metal it is not noticed, as by
/// [`nll`].
pub fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let &[rows, width] = logits.dims() else {
        bail!(
            "cross_entropy expects logits of rank 2, got {:?}",
            logits.shape()
        );
    };
    let targets = Targets::new(targets, rows, logits.device())?;
    if logits.track_op() {
        note_logits(logits);
    }
    if logits.elem_count() == 0 {
        bail!("cross_entropy of no logits, got {:?}", logits.shape());
    }
    if !kernel::runs_on(logits.device()) {
        let logits = logits.to_dtype(sum_type(logits.dtype()))?;
        return nll(&log_softmax(&logits, D::Minus1)?, targets.tensor());
    }
    let forward = CrossEntropy::new(width, &targets)?;
    let [losses, logs] = kernel::run(&forward, [logits])?;
    let total = Total::of(&targets, width, losses.dtype())?;
    let loss = total.mean(&losses.sum_all()?)?;
    let backward = move |given: Backward<1>| {
        let backward = CrossEntropy::new(width, &targets)?;
        let (factor, [logits]) = (total.mean(&given.gradient)?, &given.inputs);
        let [gradient] = kernel::run(&backward, [&logs, &factor, logits])?;
        Ok([Some(gradient)])
    };
    record("cross-entropy", [logits], loss, backward)
}

/// For each row log Σ e^x − x[target], and log Σ e^(x − max).
pub struct CrossEntropy {
    pub width: usize,
    pub targets: Targets,
    /// The class of each row, on the CPU.
    classes: Vec<Option<usize>>,
}

impl CrossEntropy {
    fn new(width: usize, targets: &Targets) -> Result<Self> {
        Ok(Self {
            width,
            targets: targets.clone(),
            classes: match targets.tensor().device().is_cpu() {
                true => targets.classes(width)?,
                false => Vec::new(),
            },
        })
    }

    fn classes(&self, first: usize) -> impl Iterator<Item = Option<usize>> {
        self.classes.iter().skip(first).copied()
    }
}

impl Kernel<1, 2> for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    fn plan(&self, [xs]: [&Tensor; 1]) -> Plan {
        let plan = Plan::of_rows(xs, self.width, [Extent::Row(self.width)]);
        let rows = Shape::from(self.targets.tensor().elem_count());
        Plan {
            outputs: vec![(rows, Extent::Row(1)); 2],
            is_wide: true,
            ..plan
        }
    }

    fn cpu<S: Number>(&self, first: usize, [xs]: [&[S]; 1], [losses, logs]: [&mut [S]; 2]) {
        let rows = xs.chunks(self.width).zip(self.classes(first));
        for ((loss, log), (x, class)) in losses.iter_mut().zip(logs).zip(rows) {
            let max = max_of(x);
            let sum = sum_of(x, x, |x, _| (x - max).fast_exp()).ln();
            *log = sum;
            if let Some(x) = class.and_then(|class| x.get(class)) {
                *loss = sum - (*x - max);
            }
        }
    }
}

/// (e^(x − max − log Σ e^(x − max)) − onehot) · factor, from the logarithms, the factor and x. The maximum is found again: added to the
/// logarithm, a large one would take its digits. The factor is the gradient of the mean, divided by the number of rows that count.
impl Kernel<3, 1> for CrossEntropy {
    const NAME: &'static str = "cross_entropy_backward";

    const WIDE: usize = 2;

    fn plan(&self, [_, _, xs]: [&Tensor; 3]) -> Plan {
        let row = Extent::Row(self.width);
        Plan::of_rows(xs, self.width, [Extent::Row(1), Extent::All, row])
    }

    fn cpu<S: Number>(&self, first: usize, inputs: [&[S]; 3], [dxs]: [&mut [S]; 1]) {
        let ([logs, factor, xs], width) = (inputs, self.width);
        let scale = factor.iter().copied().sum::<S>();
        let rows = xs.chunks(width).zip(logs).zip(self.classes(first));
        for (dx, ((x, log), class)) in dxs.chunks_mut(width).zip(rows) {
            let Some(class) = class else {
                continue;
            };
            let max = max_of(x);
            let softmax = |x: S| ((x - max) - *log).fast_exp();
            for (dx, x) in dx.iter_mut().zip(x) {
                *dx = softmax(*x) * scale;
            }
            if let (Some(dx), Some(x)) = (dx.get_mut(class), x.get(class)) {
                *dx = (softmax(*x) - S::one()) * scale;
            }
        }
    }
}

/// The negative of the logarithms of probabilities (N, C) at the classes (N), averaged over the rows that count: as
/// [`candle_nn::loss::nll`].
///
/// Targets are u8, u32 or i64. A row whose target is the largest value of its type, for example `u32::MAX`, does not count: it adds
/// nothing to the sum, gets no gradient, and the mean is over the others, as in [`cross_entropy`](super::cross_entropy()). For f16 and
/// bf16 the loss is f32, as is its sum.
///
/// It keeps nothing of the input. The graph holds the targets.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_headroom_nn::{loss::nll, ops::log_softmax};
///
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::new(&[[2f32, 2.], [2., 2.]], &Device::Cpu)?;
/// let targets = Tensor::new(&[0u32, 1], &Device::Cpu)?;
/// let loss = nll(&log_softmax(&logits, 1)?, &targets)?.to_scalar::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
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
    let chosen = dense("nll", &inp.detach())?.gather(&places, 1)?;
    let loss = total.mean(&chosen.to_dtype(wide)?.sum_all()?.neg()?)?;
    record_lean("nll", [inp], loss, move |gradient, _| {
        let slope = total.mean(&gradient)?.neg()?.to_dtype(dtype)?;
        let slopes = slope.broadcast_as((rows, 1))?.contiguous()?;
        let zeros = Tensor::zeros((rows, classes), dtype, &device)?;
        Ok([Some(zeros.scatter_add(&places, &slopes, 1)?)])
    })
}
