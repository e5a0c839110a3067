//! Whether a gradient is the slope of the loss, by differences at smaller and smaller steps.
//!
//! A gradient is called wrong only where several steps in a row show the same difference, which a kink, a step that is too large, and rounding
//! errors do not; and right or wrong only where the loss resolves the change that it claims.

use std::collections::HashSet;
use std::ops::Range;

use candle_core::{DType, Tensor};
use candle_nn::VarMap;

use super::moved::{DIRECTIONS, Moved, Values, numbers, vars};
use super::report::{Audit, AuditError, Received, Slope};

/// The largest step, in proportion to a Var's scale: further away, the loss tells nothing about the slope here.
const LARGEST: f64 = 0.25;
/// Each step is half of the one before.
const SMALLER: f64 = 0.5;
/// Number of steps that are tried in one direction.
const STEPS: usize = 12;
/// How much finer than the tolerance the first step resolves, so that some smaller ones can follow.
const MARGIN: f64 = 16.;
/// Number of steps in a row at which the same difference means that the gradient is wrong. A step that is too large gives differences
/// by its square, a kink and rounding errors give others each time.
const AGREEING: usize = 4;
/// How far these may be from the last one, in proportion to it.
const SAME: f64 = 0.2;
/// The most that the loss may bend over a step, in proportion to the difference, where a gradient is called wrong.
const BEND: f64 = 0.125;
/// The most that rounding errors of the loss may be, in proportion to the change that a gradient claims, if it is to be judged.
const RESOLVED: f64 = 0.5;
/// How many standard deviations of a loss its rounding errors may be: for the difference of two losses, 2.8 of its own. One time in
/// 200 it is more, and then another step follows.
const DEVIATIONS: f64 = 4.;
/// Vars are moved together if their effects on the loss differ by at most this factor.
const ALIKE: f64 = 4.;

/// A loss, and the values of the Vars that were moved.
type Point = (f64, Vec<Vec<f64>>);
/// What a comparison came to.
type Found = (Received, Slope);
type Loss<'a> = &'a mut dyn FnMut() -> candle_core::Result<Tensor>;

/// A comparison of gradients with the loss's slopes.
struct Slopes<'a> {
    loss: Loss<'a>,
    seed: u64,
    /// The values where slopes are measured.
    at: Values,
    /// The loss there.
    value: f64,
    /// Sorted by effect, the largest first.
    moved: Vec<Moved>,
    /// Of the coarsest type.
    epsilon: f64,
    /// The largest difference of two losses that rounding errors explain.
    noise: f64,
    audit: &'a mut Audit,
}

/// Adds slopes to a report.
pub(super) fn measure(
    varmap: &VarMap,
    loss: Loss<'_>,
    seed: u64,
    audit: &mut Audit,
) -> Result<(), AuditError> {
    // Before `at`, so that it is restored after it.
    let _values = Values::save(varmap)?;
    let mut vars = vars(varmap);
    // A Var with several names is measured under the first.
    let mut seen = HashSet::new();
    vars.retain(|(_, var)| var.elem_count() > 0 && seen.insert(var.id()));
    let mut moved = Vec::new();
    for (index, audited) in audit.vars.iter_mut().enumerate() {
        let var = vars.iter().find(|(name, _)| *name == audited.name);
        if let (Some((_, var)), Received::Finite | Received::Zeros) = (var, audited.received) {
            moved.push(Moved::new(index, var, seed)?);
            audited.received = Received::Undecided;
        }
    }
    let at = Values::save(varmap)?;
    let tensor = scalar(&mut *loss)?;
    let mut gradients = tensor.backward()?;
    for var in &mut moved {
        if let Some(gradient) = gradients.remove(&var.var) {
            var.differentiate(numbers(&gradient)?);
        }
    }
    drop(gradients);
    moved.retain(|var| var.effect.is_finite());
    moved.sort_by(|a, b| b.effect.total_cmp(&a.effect));
    let rounding = epsilon(tensor.dtype());
    let types = moved.iter().map(|var| epsilon(var.var.dtype()));
    let mut slopes = Slopes {
        seed,
        at,
        value: number(&tensor)?,
        epsilon: types.fold(rounding, f64::max),
        moved,
        noise: 0.,
        loss,
        audit,
    };
    drop(tensor);
    slopes.noise = slopes.noise(rounding)?;
    let mut start = 0;
    while let Some(first) = slopes.moved.get(start) {
        let least = first.effect / ALIKE;
        let end = slopes.moved.partition_point(|var| var.effect >= least);
        slopes.judge(start..end)?;
        start = end;
    }
    Ok(())
}

impl Slopes<'_> {
    /// The loss where these Vars are moved by `step` times their changes, and their values there. The others are as they were.
    fn loss_at(
        &mut self,
        vars: Range<usize>,
        changes: &[Vec<f64>],
        step: f64,
    ) -> Result<Point, AuditError> {
        self.at.restore()?;
        let moved = self.moved[vars].iter().zip(changes);
        let values = moved.map(|(var, change)| var.set(change, step));
        let values = values.collect::<candle_core::Result<_>>()?;
        Ok((number(&scalar(&mut *self.loss)?)?, values))
    }

    /// The largest difference of two losses that rounding errors explain, where a loss of 1 is rounded to `rounding`.
    ///
    /// By a table of differences (Hamming; Moré and Wild, "Estimating computational noise", 2011): the fourth differences of a
    /// smooth function at points this close vanish, those of rounding errors have 70 times their variance.
    fn noise(&mut self, rounding: f64) -> Result<f64, AuditError> {
        let (first, second) = (self.value, self.loss_at(0..0, &[], 0.)?.0);
        if (first - second).abs() > rounding.sqrt() * first.abs() {
            return Err(AuditError::NotRepeatable(first, second));
        }
        let vars = 0..self.moved.len();
        let changes = self.changes(vars.clone(), 1);
        let mut losses = Vec::new();
        // Many units of the last place apart, so that the errors are independent; in f64 some of f32 too, because a part of the model may
        // be computed in f32.
        let least = (4. * self.epsilon).max(8. * f64::from(f32::EPSILON));
        let spacing = (self.epsilon.sqrt() / 16.).max(least);
        for point in -6..=6 {
            let step = f64::from(point) * spacing;
            losses.push(self.loss_at(vars.clone(), &changes, step)?.0);
        }
        let fourth = |l: &[f64]| (l[0] - 4. * l[1] + 6. * l[2] - 4. * l[3] + l[4]).abs();
        let mut differences: Vec<f64> = losses.windows(5).map(fourth).collect();
        // The median, because a kink between two points is no noise. It is 0.6745 standard deviations.
        differences.sort_by(f64::total_cmp);
        let deviation = differences[differences.len() / 2] / 70f64.sqrt() / 0.6745;
        // A loss that is rounded to the same number at all points is known to one unit in the last place at best.
        Ok(DEVIATIONS * deviation.max(rounding * first.abs() / 12f64.sqrt()))
    }

    /// How each of these Vars changes for a step of 1. All get the same effect, so that none hides another.
    fn changes(&self, vars: Range<usize>, direction: u64) -> Vec<Vec<f64>> {
        let vars = &self.moved[vars];
        let least = vars.last().map_or(0., |var| var.effect);
        let factor = |var: &Moved| if least > 0. { least / var.effect } else { 1. };
        let changes = vars
            .iter()
            .map(|var| var.direction(direction, self.seed, factor(var)));
        changes.collect()
    }

    /// Compares the slopes of these Vars together, and if they disagree those of each half.
    fn judge(&mut self, vars: Range<usize>) -> Result<(), AuditError> {
        let effect = self.moved[vars.end - 1].effect;
        let mut worst = (Received::Finite, Slope::default());
        // A gradient of zeros has no direction.
        for direction in u64::from(effect == 0.)..DIRECTIONS {
            let found = self.along(vars.clone(), direction, effect)?;
            if found.0 < worst.0 {
                worst = found;
            }
        }
        if vars.len() > 1 && worst.0 != Received::Right {
            let middle = vars.start + vars.len() / 2;
            self.judge(vars.start..middle)?;
            return self.judge(middle..vars.end);
        }
        for var in &self.moved[vars] {
            let audited = &mut self.audit.vars[var.index];
            audited.slope = Some(worst.1);
            audited.received = match worst.0 {
                Received::TooSmall if audited.norm == Some(0.) => Received::Zeros,
                received => received,
            };
        }
        Ok(())
    }

    /// Compares slopes in one direction, with smaller and smaller steps until they agree, or disagree by the same each time.
    fn along(
        &mut self,
        vars: Range<usize>,
        direction: u64,
        effect: f64,
    ) -> Result<Found, AuditError> {
        let changes = self.changes(vars.clone(), direction);
        // 6e-6 in f64, 5e-3 in f32, 0.1 in f16, 0.2 in bf16; larger where the loss is noisy.
        let (tolerance, mut step) = (tolerance(self.epsilon), self.epsilon.cbrt());
        if effect > 0. {
            let wanted = MARGIN * self.noise / (2. * effect * tolerance);
            step = wanted.clamp(step, LARGEST);
        }
        let mut slope = Slope {
            vars: vars.len(),
            ..Slope::default()
        };
        let mut before: Option<f64> = None;
        let mut differences = Vec::new();
        let mut has_differed = false;
        for _ in 0..STEPS {
            let (ahead, above) = self.loss_at(vars.clone(), &changes, step)?;
            let (behind, below) = self.loss_at(vars.clone(), &changes, -step)?;
            step *= SMALLER;
            let (claimed, share, length) = claim(&self.moved[vars.clone()], &above, &below);
            let difference = (ahead - behind - claimed) / length;
            if !difference.is_finite() {
                (before, has_differed) = (None, true);
                continue;
            }
            // By Richardson's extrapolation, without the part that falls by the square of the step.
            let refined = before.map_or(difference, |before| (4. * difference - before) / 3.);
            slope.claimed = claimed / length;
            slope.measured = Some((ahead - behind) / length);
            let allowed = tolerance * share + self.noise;
            let least = difference.abs().min(refined.abs()) * length;
            if least <= allowed {
                if difference.abs() > refined.abs() {
                    slope.measured = Some(slope.claimed + refined);
                }
                // Where a loss is constant, there is no share.
                let is_resolved = share > 0. && self.noise <= RESOLVED * share;
                slope.within = Some(allowed / share).filter(|_| is_resolved);
                let received = match (is_resolved, has_differed) {
                    (true, _) => Received::Right,
                    (false, true) => Received::Undecided,
                    (false, false) => Received::TooSmall,
                };
                return Ok((received, slope));
            }
            let is_clear = least > 2. * allowed;
            has_differed |= is_clear;
            match is_clear && before.is_some() {
                true => differences.push(refined),
                false => differences.clear(),
            }
            before = Some(difference);
            // At a kink, the loss bends by as much as it changes, at each step.
            let bend = (ahead - self.value) - (self.value - behind);
            let is_straight = bend.abs() <= difference.abs() * length * BEND + self.noise;
            let same = |other: &&f64| (*other - refined).abs() <= SAME * refined.abs();
            if is_straight && differences.iter().rev().take_while(same).count() >= AGREEING {
                return Ok((Received::Wrong, slope));
            }
        }
        Ok((Received::Undecided, slope))
    }
}

/// What gradients claim for the loss's change between two values of their Vars, the least share of a Var in it, whatever happens to
/// cancel, and the distance of the values. They are rounded values, so that the Vars' types add no error.
fn claim(vars: &[Moved], above: &[Vec<f64>], below: &[Vec<f64>]) -> (f64, f64, f64) {
    let (mut change, mut least, mut length) = (0., f64::INFINITY, 0.);
    for ((var, above), below) in vars.iter().zip(above).zip(below) {
        let (mut sum, mut squares) = (0., 0.);
        for ((slope, above), below) in var.gradient.iter().zip(above).zip(below) {
            let distance = above - below;
            sum += slope * distance;
            squares += (slope * distance).powi(2);
            length += distance * distance;
        }
        change += sum;
        least = least.min(squares.sqrt().max(sum.abs()));
    }
    (change, least, length.sqrt())
}

/// A tensor of one element.
fn number(tensor: &Tensor) -> candle_core::Result<f64> {
    Ok(numbers(tensor)?.into_iter().sum())
}

/// Runs the forward pass.
pub(super) fn scalar(
    loss: impl FnOnce() -> candle_core::Result<Tensor>,
) -> Result<Tensor, AuditError> {
    let loss = loss()?;
    match loss.elem_count() {
        1 => Ok(loss),
        _ => Err(AuditError::NotScalar(loss.shape().clone())),
    }
}

/// One unit in the last place of 1, for a loss that is computed in a type: ε.
///
/// A central difference with the step h has two errors. Rounding of the loss by ε gives ε/h, and what the difference leaves out gives
/// h², both in proportion to the slope, where the loss and the Var's scale are 1. Their sum is least, about ε^⅔, at h = ε^⅓.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => 2f64.powi(-10),
        _ => 2f64.powi(-7),
    }
}

/// The largest difference of slopes that counts as none, in proportion to the slope: in f64 and f32 far above the least error, because
/// a formula that is wrong is wrong by more; in f16 and bf16 eight units in the last place, because the gradient itself is a sum of
/// rounded numbers.
fn tolerance(epsilon: f64) -> f64 {
    let formula: f64 = if epsilon == f64::EPSILON { 1e-5 } else { 1e-3 };
    formula.max(8. * epsilon)
}
