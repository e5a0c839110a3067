//! Which elements a sharded optimizer updates.

use std::ops::Range;

use super::managed::Managed;
use super::setup::{Setup, move_moments};
use crate::error::{Result, invalid};
use crate::optim::Shard;
use crate::optim::coded::Form;
use crate::optim::rule::Rule;

impl<R: Rule> Setup<R> {
    /// Returns the same for these elements alone, or for all.
    pub fn cut(&self, shard: Option<&Shard>) -> Result<Self> {
        let mut cut = Self {
            shard: shard.cloned(),
            ..self.clone()
        };
        for parameter in &mut cut.parameters {
            let all = 0..parameter.len;
            let ranges = match shard {
                Some(shard) if !all.is_empty() => shard.ranges(&parameter.var).unwrap_or_default(),
                // A parameter without elements is every rank's.
                _ => std::slice::from_ref(&all),
            };
            for range in ranges {
                if let Some(reason) = reason_against(parameter, range) {
                    return Err(invalid!(
                        Optimizer,
                        "elements {range:?} of parameter `{}` cannot be a piece of a shard: {reason}",
                        parameter.name
                    ));
                }
            }
            parameter.restrict(ranges);
            parameter.on_host = false;
        }
        if let Some(fraction) = cut.on_host {
            move_moments(&mut cut.parameters, fraction);
        }
        Ok(cut)
    }

    /// Checks that no parameter is left out because the shard was made without it.
    pub fn check_listed(&self) -> Result<()> {
        let Some(shard) = &self.shard else {
            return Ok(());
        };
        match self.updated().find(|p| shard.ranges(&p.var).is_none()) {
            Some(parameter) => Err(invalid!(
                Optimizer,
                "the shard does not list parameter `{}`: call `shard` with the ranges of all parameters that are not frozen, and none where this rank owns nothing",
                parameter.name
            )),
            None => Ok(()),
        }
    }

    /// Whether state is kept for elements of this parameter, here or by other ranks.
    pub fn has_state(&self, parameter: &Managed) -> bool {
        let listed = self.shard.as_ref();
        let is_listed = listed.is_none_or(|shard| shard.ranges(&parameter.var).is_some());
        is_listed && !self.is_frozen(parameter)
    }
}

/// Why these elements cannot be updated by themselves.
fn reason_against(parameter: &Managed, range: &Range<usize>) -> Option<String> {
    let (len, unit) = (parameter.len, Shard::ALIGNMENT);
    if range.end > len {
        return Some(format!("the parameter has {len} elements"));
    }
    if range.len() == len {
        return None;
    }
    let is_coded = |form| matches!(form, Form::Coded(_));
    let is_cut = |end: usize| !end.is_multiple_of(unit) && end != len;
    let cuts_blocks = is_cut(range.start) || is_cut(range.end);
    (cuts_blocks && parameter.kept.iter().any(|held| is_coded(held.form))).then(|| {
        format!("it cuts a block of moments of 8 bits; cut at multiples of {unit} elements")
    })
}
