use candle_core::{DType, Device};

use crate::error::Result;
use crate::train::loss::scalar;
use crate::train::slots::{Contribution, Slots};

/// Elements of all gradients together that are compared: a wrong loss shows in all of them, and these need little memory.
const ELEMENTS: usize = 1 << 16;

/// What some samples would add to an update.
#[derive(Debug)]
pub(in crate::train) struct Side {
    /// The mean, as the gradients.
    pub(super) loss: f64,
    weight: f64,
    /// The first elements of each parameter's gradient, zeros if it has none.
    pub(super) gradients: Vec<f64>,
    /// The gradients' norm. Of a sum it is the sum of norms: what rounding errors are a part of, even if gradients cancel out.
    pub(super) scale: f64,
    /// The largest difference, as a part of the norm, that the roundings of the types explain.
    pub(super) tolerance: f64,
    pub(super) changes_buffers: bool,
}

impl Side {
    /// Reads the gradients of a loss that was multiplied by `times`.
    pub(in crate::train) fn new(
        (loss, gradients): &Contribution,
        slots: &Slots,
        times: f64,
        changes_buffers: bool,
    ) -> Result<Self> {
        let each = (ELEMENTS / slots.slots.len().max(1)).max(1);
        let mut tolerance = tolerance(loss.value.dtype());
        // A loss of weight 0 has no gradients, and may be NaN.
        let (mut part, mut mean) = (0., 0.);
        if loss.weight > 0. {
            part = loss.factor / loss.weight;
            mean = part * scalar(&loss.value)?;
        }
        let mut all = Vec::new();
        for (index, var) in slots.vars().enumerate() {
            let len = var.elem_count().min(each);
            let Some(Some(gradient)) = gradients.get(index) else {
                all.resize(all.len() + len, 0.);
                continue;
            };
            tolerance = tolerance.max(self::tolerance(gradient.dtype()));
            // A copy of these elements, since moving a view to the host moves all of its tensor.
            let first = gradient.flatten_all()?.narrow(0, 0, len)?;
            let first = first.force_contiguous()?.to_device(&Device::Cpu)?;
            let first = first.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            all.extend(first.into_iter().map(|value| part * value / times));
        }
        Ok(Self {
            loss: mean,
            weight: loss.weight,
            scale: dot(&all, &all).sqrt(),
            gradients: all,
            tolerance,
            changes_buffers,
        })
    }

    /// The weighted mean of two.
    pub(super) fn with(&self, other: &Self) -> Self {
        let weight = self.weight + other.weight;
        let part = if weight > 0. {
            self.weight / weight
        } else {
            0.
        };
        let mean = |a: f64, b: f64| part * a + (1. - part) * b;
        let pairs = self.gradients.iter().zip(&other.gradients);
        Self {
            loss: mean(self.loss, other.loss),
            weight,
            gradients: pairs.map(|(a, b)| mean(*a, *b)).collect(),
            scale: mean(self.scale, other.scale),
            tolerance: self.tolerance.max(other.tolerance),
            changes_buffers: self.changes_buffers,
        }
    }

    /// The norm of the difference of the gradients.
    pub(super) fn distance(&self, other: &Self) -> f64 {
        let pairs = self.gradients.iter().zip(&other.gradients);
        pairs.map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
    }
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// How far gradients of this type may be apart, as a part of their norm.
///
/// One rounding is off by at most u: 2^-53, 2^-24, 2^-11 and 2^-8. A batch of another size sums in another order and by other kernels,
/// and the layers between the loss and a parameter multiply what these roundings change, by some hundreds in deep models. So for f32 it
/// is 2^14 u. f64 has more, because a model may hold f64 parameters and compute in f32. Half types sum in f32 and round each result
/// once, so that the errors of the elements are independent and add up as their squares do: 16 u (f16) and 8 u (bf16). A wrong loss is
/// off by some percent at least. What the types of the parameters do not show, such as a model in f32 that computes in bf16, is
/// measured and comes on top.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-20),
        DType::F16 => 2f64.powi(-7),
        DType::BF16 => 2f64.powi(-5),
        _ => 2f64.powi(-10),
    }
}
