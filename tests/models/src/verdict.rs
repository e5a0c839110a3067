//! Judges a run of a model by the reference's.

use crate::models::{Model, is_statistic};
use crate::outcome::Outcome;
use crate::run::norm;
use candle_core::{DType, Tensor};
use std::collections::{BTreeMap, HashMap};

pub type Run = (Outcome, HashMap<String, Tensor>);

/// A gradient's difference from the reference counts in proportion to its norm, but not below this part of the whole gradient's: a
/// key's bias, for example, has no effect on attention, and its gradient is rounding.
const FLOOR: f64 = 1e-4;
/// The reference's own gradient may differ from the slope of its loss by this much: the loss is an f32, and a step of 1e-5 changes
/// its last three digits only.
const SLOPE: f64 = 0.05;

/// A gradient is right if it differs by no more. The same sums in another order differ by up to 4e-4 in f32 (snac) and by 3e-3 in f16
/// (mmdit).
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 | DType::BF16 => 1e-2,
        _ => 2e-3,
    }
}

#[derive(Default)]
pub struct Verdict {
    /// Every Var that the forward pass uses receives a gradient.
    pub reached: bool,
    /// And all gradients agree with the reference's.
    pub right: bool,
    /// The number of gradients that agree.
    pub agree: usize,
    /// The largest difference of a gradient, and its Var.
    pub worst: Option<(f64, String)>,
    /// What contradicts the model's description.
    pub faults: Vec<String>,
    /// What a reader should know.
    pub remarks: Vec<String>,
}

impl Verdict {
    pub fn new(model: &Model, run: &Run, plain: &Run) -> anyhow::Result<Self> {
        let mut verdict = Self::default();
        if !model.random {
            verdict.compare(&run.1, &plain.1)?;
        }
        verdict.count(model, run)?;
        let (outcome, gradients) = run;
        match (&outcome.error, model.impossible) {
            (Some(error), None) => verdict.faults.push(first_line(error).to_string()),
            (None, Some(reason)) => verdict
                .faults
                .push(format!("it runs, though noted as: {reason}")),
            _ => {}
        }
        let comparable = !model.random && outcome.error.is_none() && plain.0.error.is_none();
        let differs = (outcome.loss / plain.0.loss - 1.0).abs();
        // The loss of a model in f16 is computed in f16 but for its last steps.
        let coarse = gradients
            .values()
            .map(|gradient| limit(gradient.dtype()))
            .fold(limit(DType::F32), f64::max);
        if comparable && (differs > coarse || differs.is_nan()) {
            verdict.faults.push(format!(
                "the output is wrong, with a loss of {:.4} in place of {:.4}",
                outcome.loss, plain.0.loss
            ));
        }
        // Nothing is right by a reference that is not.
        verdict.faults.extend(slope_fault(&plain.0));
        verdict.right =
            verdict.reached && verdict.agree == gradients.len() && verdict.faults.is_empty();
        if comparable && verdict.agree < gradients.len() {
            let count = gradients.len() - verdict.agree;
            verdict.faults.push(format!("{count} gradients are wrong"));
        }
        Ok(verdict)
    }

    fn compare(
        &mut self,
        gradients: &HashMap<String, Tensor>,
        plain: &HashMap<String, Tensor>,
    ) -> anyhow::Result<()> {
        let norms = plain
            .iter()
            .map(|(name, gradient)| Ok((name, norm(gradient)?)))
            .collect::<anyhow::Result<HashMap<_, _>>>()?;
        let whole = norms.values().map(|norm| norm * norm).sum::<f64>().sqrt();
        for (name, reference) in plain {
            let Some(gradient) = gradients.get(name) else {
                continue;
            };
            let apart = norm(&(gradient - reference)?)? / norms[name].max(FLOOR * whole);
            self.agree += usize::from(apart <= limit(reference.dtype()));
            let worst = self.worst.as_ref();
            // Also if it is not a number.
            if worst.is_none_or(|(most, _)| apart.is_nan() || apart > *most) {
                self.worst = Some((apart, name.clone()));
            }
        }
        Ok(())
    }

    fn count(&mut self, model: &Model, (outcome, gradients): &Run) -> anyhow::Result<()> {
        if outcome.error.is_some() {
            return Ok(());
        }
        let (mut unused, mut detached) = (BTreeMap::new(), BTreeMap::new());
        let (mut missing, mut zero, mut fused) = (vec![], 0, 0);
        for var in &outcome.vars {
            let (no_use, cut) = (model.why_unused(var), model.why_detached(var));
            match (gradients.get(var), no_use, cut) {
                (None, Some(reason), _) => *unused.entry(reason).or_insert(0) += 1,
                (None, None, Some(reason)) => *detached.entry(reason).or_insert(0) += 1,
                (None, None, None) => missing.push(format!("`{var}`")),
                // Where BatchNorm is fused into the convolution at load time, its statistics are weights like others.
                (Some(_), Some(_), _) if is_statistic(var) => fused += 1,
                (Some(_), Some(reason), _) => {
                    let fault = format!("`{var}` is reached, though noted as unused: {reason}");
                    self.faults.push(fault);
                }
                (Some(_), None, Some(reason)) => {
                    let fault = format!("`{var}` is reached, though noted as detached: {reason}");
                    self.faults.push(fault);
                }
                (Some(gradient), None, None) => zero += usize::from(norm(gradient)? == 0.0),
            }
        }
        self.reached = missing.is_empty() && detached.is_empty();
        for (kind, reasons) in [("unused", unused), ("detached", detached)] {
            for (reason, count) in reasons {
                self.remarks.push(format!("{count} {kind}: {reason}"));
            }
        }
        if fused > 0 {
            self.remarks.push(format!(
                "BatchNorm is fused at load time, so {fused} running statistics receive gradients too"
            ));
        }
        if zero > 0 {
            self.remarks.push(format!("{zero} gradients are zero"));
        }
        if !missing.is_empty() {
            let (count, named) = (missing.len(), missing[..missing.len().min(4)].join(", "));
            self.faults.push(format!("{count} not reached: {named}"));
        }
        Ok(())
    }
}

/// Whether the reference's gradient is the slope of its loss, as far as that can be seen.
fn slope_fault(plain: &Outcome) -> Option<String> {
    let slope = plain.slope?;
    let good = (slope - 1.0).abs() <= SLOPE;
    (!good).then(|| format!("the loss changes {slope:.3} times as the plain gradient says"))
}

pub fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
