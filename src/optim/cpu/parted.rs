//! Updates of parameters whose numbers are in memory that is not candle's, in two parts: the new values, then the new state.

use candle_core::{DType, Result};

use super::column::Column;
use super::gradient::Gradient;
use super::lanes::{Lanes, Target, Writes};
use super::noise::seed;
use super::real::Real;
use crate::optim::coded::Form;
use crate::optim::fused::{Halves, Managed, Setup, misplaced};
use crate::optim::rule::Rule;

/// The bytes of a parameter or a piece of one, aligned for their types.
#[derive(Debug)]
pub struct Memory<'a, S> {
    /// Contiguous, with its type.
    pub gradient: (&'a [u8], DType),
    /// The parameter as it was before the update.
    pub parameter: &'a mut [u8],
    /// What is kept for it, in the order of [`Managed::kept`].
    pub state: S,
}

/// What is computed.
#[derive(Debug)]
pub enum Part<'a> {
    /// The new values of the parameter, which come here. All else stays.
    Values(&'a mut [u8]),
    /// The new state, in place.
    State,
}

/// Computes a part of the `step`-th update with `scale` times the gradient, for a rule that treats each element by itself.
pub fn update<'a, R: Rule>(
    setup: &Setup<R>,
    parameter: &Managed,
    (step, scale): (u64, f64),
    memory: Memory<'a, impl Iterator<Item = &'a mut [u8]>>,
    part: Part<'a>,
) -> Result<()> {
    match parameter.full {
        DType::F64 => run::<R, f64>(setup, parameter, (step, scale), memory, part),
        _ => run::<R, f32>(setup, parameter, (step, scale), memory, part),
    }
}

fn run<'a, R: Rule, C: Real>(
    setup: &Setup<R>,
    parameter: &Managed,
    (step, scale): (u64, f64),
    mut memory: Memory<'a, impl Iterator<Item = &'a mut [u8]>>,
    part: Part<'a>,
) -> Result<()> {
    let form = Form::Plain(parameter.var.dtype());
    let column = |bytes, form| Column::<C>::of_bytes(bytes, form).ok_or_else(misplaced);
    let (moments, master) = parameter.kept.split_at(parameter.by_rule().len());
    let mut next = |form| column(memory.state.next().ok_or_else(misplaced)?, form);
    let mut state = [Column::default(), Column::default()];
    for (column, held) in state.iter_mut().zip(moments) {
        *column = next(held.form)?;
    }
    let master = master.first().map(|held| next(held.form)).transpose()?;
    let (first, bound) = (parameter.first, setup.adjustment.bound());
    let gradient = Gradient::of_bytes(memory.gradient, first, scale, bound);
    let lanes = Lanes::<C> {
        start: first,
        seed: seed(step),
        is_noisy: setup.halves == Halves::Stochastic,
        parameter: column(memory.parameter, form)?,
        gradient: gradient.ok_or_else(misplaced)?,
        state,
        master: master.map(Column::into_full),
        writes: match part {
            Part::Values(into) => Writes::Values(column(into, form)?),
            Part::State => Writes::State,
        },
    };
    let target = Target {
        lanes,
        dims: parameter.var.dims(),
        partials: &mut [],
        scratch: &mut [],
    };
    setup.rule.apply(setup.rates(parameter), step, target);
    Ok(())
}
