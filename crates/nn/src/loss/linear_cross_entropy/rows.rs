//! What changes matrices in place, without temporaries of their size: a factor, and rows of logits that become losses and gradients.

use candle_core::{CpuStorage, Device, Layout, Result, Shape, Storage, Tensor};

use super::tokens::{Arguments, NAME};
use crate::kernel::{
    InPlace, Number, by_rows, in_place, max_of, mismatch, on_all_threads, rows_at_once, runs_on,
    slice_of, slice_of_mut, sum_of, tensor,
};

const SCALE: &str = "scale";

/// Multiplies values by a number that lies on their device. `values`, at least one, are contiguous and share their storage with no
/// other tensor; `factor` has one element of the same type, f32 or f64.
pub fn scale(values: &Tensor, factor: &Tensor) -> Result<()> {
    if !runs_on(values.device()) {
        return values.slice_set(&values.broadcast_mul(factor)?, 0, 0);
    }
    in_place(SCALE, values, |values, layout| match values {
        InPlace::Cpu(CpuStorage::F32(values)) => scaled(values, layout, factor),
        InPlace::Cpu(CpuStorage::F64(values)) => scaled(values, layout, factor),
        #[cfg(feature = "cuda")]
        InPlace::Cuda(values) => crate::kernel::cuda::scale((values, layout), factor),
        _ => Err(mismatch(SCALE)),
    })
}

fn scaled<T: Number>(values: &mut [T], layout: &Layout, factor: &Tensor) -> Result<()> {
    let (storage, of_factor) = factor.storage_and_layout();
    let &[factor] = slice_of::<T>(&storage, of_factor, SCALE)? else {
        return Err(mismatch(SCALE));
    };
    let values = slice_of_mut(values, layout, SCALE)?;
    if factor == T::one() {
        return Ok(());
    }
    by_rows(values, 1, |_, values| {
        values.iter_mut().for_each(|value| *value *= factor);
    })
}

/// The losses of rows of logits, which are contiguous and in the type of sums. With `differentiates` the logits become the
/// gradients of the sum of the losses. On Metal this waits for the device, and the CPU computes it.
pub fn losses(arguments: &Arguments, logits: &Tensor) -> Result<Tensor> {
    if !runs_on(logits.device()) {
        return on_host(arguments, logits);
    }
    let losses = in_place(NAME, logits, |logits, layout| match logits {
        InPlace::Cpu(CpuStorage::F32(logits)) => on_cpu(arguments, logits, layout),
        InPlace::Cpu(CpuStorage::F64(logits)) => on_cpu(arguments, logits, layout),
        #[cfg(feature = "cuda")]
        InPlace::Cuda(logits) => {
            crate::kernel::cuda::losses_of_rows(arguments, logits, layout).map(Storage::Cuda)
        }
        _ => Err(mismatch(NAME)),
    })?;
    Ok(tensor(losses, Shape::from(logits.dim(0)?)))
}

fn on_host(arguments: &Arguments, logits: &Tensor) -> Result<Tensor> {
    let host = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
    let on_host = host(logits)?;
    let weights = arguments.weights.map(host).transpose()?;
    let bias = arguments.bias.map(host).transpose()?;
    let of_rows = Arguments {
        targets: &host(arguments.targets)?,
        weights: weights.as_ref(),
        bias: bias.as_ref(),
        ..*arguments
    };
    let losses = losses(&of_rows, &on_host)?;
    if arguments.differentiates {
        logits.slice_set(&on_host.to_device(logits.device())?, 0, 0)?;
    }
    losses.to_device(logits.device())
}

fn on_cpu<T: Number>(arguments: &Arguments, logits: &mut [T], layout: &Layout) -> Result<Storage> {
    let logits = slice_of_mut(logits, layout, NAME)?;
    let (rows, width) = layout.shape().dims2()?;
    let (storage, of_targets) = arguments.targets.storage_and_layout();
    let targets = slice_of::<i64>(&storage, of_targets, NAME)?;
    let optional = [arguments.weights, arguments.bias];
    let optional = optional.map(|tensor| tensor.map(Tensor::storage_and_layout));
    let [weights, bias] = optional.each_ref().map(|tensor| match tensor {
        Some((storage, layout)) => slice_of::<T>(storage, layout, NAME),
        None => Ok(&[][..]),
    });
    let (weights, bias) = (weights?, bias?);
    let rule = &arguments.rule;
    let row = Row {
        smoothing: T::of(rule.smoothing),
        share: T::of(rule.smoothing / width.max(1) as f64),
        z_loss: T::of(rule.z_loss),
        softcap: rule.softcap.map(T::of),
        bias,
        differentiates: arguments.differentiates,
    };
    let mut losses = vec![T::zero(); rows];
    let at_once = rows_at_once(width);
    let groups = losses.chunks_mut(at_once);
    let groups = groups.zip(logits.chunks_mut(at_once * width.max(1)));
    on_all_threads(groups.collect(), &|group, (losses, logits)| {
        let rows = losses.iter_mut().zip(logits.chunks_mut(width.max(1)));
        for (index, (loss, logits)) in (group * at_once..).zip(rows) {
            let weight = weights.get(index).copied().unwrap_or(T::one());
            let target = targets.get(index).copied().unwrap_or(arguments.none);
            if target == arguments.none || weight == T::zero() {
                if row.differentiates {
                    logits.fill(T::zero());
                }
                continue;
            }
            *loss = row.loss(logits, usize::try_from(target).ok(), weight);
        }
        Ok(())
    })?;
    Ok(Storage::Cpu(T::to_cpu_storage_owned(losses)))
}

/// How a row becomes a loss.
struct Row<'a, T> {
    smoothing: T,
    /// What each class gets of the smoothing.
    share: T,
    z_loss: T,
    softcap: Option<T>,
    /// One number for each class; empty for a layer without a bias.
    bias: &'a [T],
    differentiates: bool,
}

impl<T: Number> Row<'_, T> {
    /// The weighted loss of a row, which becomes the loss's gradient if that is asked for. Without a class it is NaN.
    fn loss(&self, xs: &mut [T], target: Option<usize>, weight: T) -> T {
        let (smoothing, share) = (self.smoothing, self.share);
        let (z_loss, softcap) = (self.z_loss, self.softcap);
        for (x, bias) in xs.iter_mut().zip(self.bias) {
            *x += *bias;
        }
        if let Some(cap) = softcap {
            xs.iter_mut().for_each(|x| *x = (*x / cap).tanh() * cap);
        }
        let Some((index, of_target)) = target.and_then(|at| Some((at, *xs.get(at)?))) else {
            if self.differentiates {
                xs.fill(T::nan());
            }
            return T::nan();
        };
        let max = max_of(xs);
        // Logarithms of sums are kept apart from the maximum: added to it, they would lose their digits if it is large.
        let log = sum_of(xs, xs, |x, _| (x - max).fast_exp()).ln();
        let above = log - (of_target - max);
        let mut loss = above;
        if smoothing > T::zero() {
            let below = sum_of(xs, xs, |x, _| x - max);
            loss = (T::one() - smoothing) * above + (smoothing * log - share * below);
        }
        let whole = max + log;
        if z_loss > T::zero() {
            loss += z_loss * whole * whole;
        }
        if self.differentiates {
            let of_softmax = weight * (T::one() + T::of(2.) * z_loss * whole);
            let of_all = weight * share;
            let slope = |x: T| of_softmax * ((x - max) - log).fast_exp() - of_all;
            // The derivative of the cap, from its result.
            let steepness = |x: T, cap: T| T::one() - (x / cap) * (x / cap);
            let mut at_target = slope(of_target) - weight * (T::one() - smoothing);
            match softcap {
                None => xs.iter_mut().for_each(|x| *x = slope(*x)),
                Some(cap) => {
                    at_target *= steepness(of_target, cap);
                    xs.iter_mut()
                        .for_each(|x| *x = slope(*x) * steepness(*x, cap));
                }
            }
            if let Some(x) = xs.get_mut(index) {
                *x = at_target;
            }
        }
        weight * loss
    }
}
