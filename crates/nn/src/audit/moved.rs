//! Moving a Var to measure the loss's slope: along its gradient, and in random directions, by a part of its own values.

use std::sync::PoisonError;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_nn::VarMap;

use crate::seed::mix;

/// How far a Var is moved before its gradient is compared, in proportion to its values.
const SHIFT: f64 = 1. / 64.;
/// The directions of a comparison: that of the gradient, and random ones.
pub(super) const DIRECTIONS: u64 = 3;
/// The scale of a Var whose values are all 0, as of a bias: a tenth of what activations have in most models.
const SCALE_OF_ZEROS: f64 = 0.1;

/// A Var whose gradient is compared with the loss's slopes. Its numbers are in host memory, in f64.
pub(super) struct Moved {
    /// Its place in the report.
    pub index: usize,
    pub var: Var,
    values: Vec<f64>,
    pub gradient: Vec<f64>,
    /// The root of the mean square of its values.
    scale: f64,
    /// The gradient's norm, times the scale: about what a random direction changes of the loss. NaN without a gradient.
    pub effect: f64,
}

impl Moved {
    /// Moves each element by up to a part of itself, and those of a Var of zeros by up to as much of its scale.
    pub fn new(index: usize, var: &Var, seed: u64) -> Result<Self> {
        let values = numbers(var)?;
        let scale = match norm(&values) {
            0. => SCALE_OF_ZEROS,
            norm => norm / (values.len() as f64).sqrt(),
        };
        let mut moved = Self {
            index,
            var: var.clone(),
            values,
            gradient: Vec::new(),
            scale,
            effect: f64::NAN,
        };
        let random = moved.values.iter().zip(random(seed, index, DIRECTIONS));
        let shift = random.map(|(value, by)| by * if *value == 0. { scale } else { *value });
        moved.values = moved.set(&shift.collect::<Vec<_>>(), SHIFT)?;
        Ok(moved)
    }

    /// Sets the gradient.
    pub fn differentiate(&mut self, gradient: Vec<f64>) {
        self.effect = norm(&gradient) * self.scale;
        self.gradient = gradient;
    }

    /// The change for a step of 1: along the gradient by at most the scale, or by the scale times a random number for each element.
    /// Not by ±1 alone, so that equal errors of two elements do not cancel.
    pub fn direction(&self, direction: u64, seed: u64, factor: f64) -> Vec<f64> {
        let size = self.scale * factor;
        if direction > 0 {
            let random = random(seed, self.index, direction).take(self.values.len());
            return random.map(|by| size * (by + 0.5f64.copysign(by))).collect();
        }
        let largest = largest(&self.gradient);
        let parts = self.gradient.iter().map(|slope| slope / largest);
        parts.map(|part| size * part).collect()
    }

    /// Moves the Var by `step` times a change, and returns its values, which are rounded to its type.
    pub fn set(&self, change: &[f64], step: f64) -> Result<Vec<f64>> {
        let values = self.values.iter().zip(change);
        let values: Vec<f64> = values.map(|(value, by)| value + step * by).collect();
        let values = Tensor::from_vec(values, self.var.shape(), &Device::Cpu)?;
        let values = values.to_dtype(self.var.dtype())?;
        self.var.set(&values.to_device(self.var.device())?)?;
        numbers(&values)
    }
}

/// A tensor's elements.
pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    let tensor = tensor.detach().to_device(&Device::Cpu)?;
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// The Euclidean norm, also where squares are infinite or 0.
pub(super) fn norm(numbers: &[f64]) -> f64 {
    match largest(numbers) {
        0. => numbers.iter().sum(), // NaN if there is one
        largest => {
            let squares = numbers.iter().map(|number| (number / largest).powi(2));
            largest * squares.sum::<f64>().sqrt()
        }
    }
}

fn largest(numbers: &[f64]) -> f64 {
    let numbers = numbers.iter().map(|number| number.abs());
    numbers.fold(0., f64::max)
}

/// Random numbers in [-1, 1).
fn random(seed: u64, index: usize, direction: u64) -> impl Iterator<Item = f64> {
    let stream = mix(seed ^ mix(index as u64) ^ direction);
    (0u64..).map(move |count| (mix(stream ^ count) >> 11) as f64 / (1u64 << 52) as f64 - 1.)
}

/// All Vars of a map with their values, which are restored at the end, also by an error or a panic.
pub(super) struct Values(Vec<(Var, Tensor)>);

impl Values {
    pub(super) fn save(varmap: &VarMap) -> Result<Self> {
        let vars = vars(varmap).into_iter();
        let saved = vars.map(|(_, var)| Ok((var.clone(), var.as_detached_tensor().copy()?)));
        saved.collect::<Result<_>>().map(Self)
    }

    /// Sets all of them, also if one fails.
    pub(super) fn restore(&self) -> Result<()> {
        let results = self.0.iter().map(|(var, value)| var.set(value));
        results.fold(Ok(()), Result::and)
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            tracing::error!(%error, "a Var could not be restored after an audit");
        }
    }
}

/// The Vars of a map, sorted by name.
pub(super) fn vars(varmap: &VarMap) -> Vec<(String, Var)> {
    // A panic while the lock was held leaves a valid map.
    let data = varmap.data().lock().unwrap_or_else(PoisonError::into_inner);
    let vars = data.iter().map(|(name, var)| (name.clone(), var.clone()));
    let mut vars: Vec<_> = vars.collect();
    vars.sort_by(|(a, _), (b, _)| a.cmp(b));
    vars
}
