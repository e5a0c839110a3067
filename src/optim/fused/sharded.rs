use std::sync::atomic::Ordering::Relaxed;

use candle_core::Result as CandleResult;
use candle_core::backprop::GradStore;

use super::engine::{Loaded, Snapshot};
use super::managed::Managed;
use super::optimizer::Fused;
use super::setup::Setup;
use crate::error::{OptimizerError, Result};
use crate::optim::{Algorithm, Committed, Measure, Shard, StateDict};

/// One rank's part of an optimizer.
impl<A: Algorithm> Fused<A> {
    /// Keeps state for the elements of this shard alone, and updates only them, from their gradients; the rest of the gradients is not
    /// read. Their new values are those that the whole optimizer would compute, bit for bit, given the same gradients.
    ///
    /// Without `state`, what is kept for elements of the shard stays, and parameters that were not listed before get new state. Where
    /// elements move between ranks, `state` is the whole state, from [`StateDict::merge`]; it is loaded as by
    /// [`load_state`](Self::load_state). A group that is thawed needs a new shard unless its parameters are listed already.
    /// The part of the moments in host memory is chosen anew from the pieces.
    ///
    /// # Errors
    /// [`OptimizerError::Unlisted`] if the shard leaves a parameter out that is not frozen; [`OptimizerError::Piece`] for elements
    /// that cannot be updated by themselves: beyond the parameter, in blocks of 8 bits that are cut (see [`Shard::ALIGNMENT`]), or
    /// in parts of a parameter for `Adafactor`, whose state is not one number for each element; [`OptimizerError::Elsewhere`] without
    /// `state` for elements of which another rank has the state; errors of `load_state`, of copying and of memory. Nothing has changed then.
    pub fn shard(&mut self, shard: &Shard, state: Option<&StateDict>) -> Result<()> {
        let setup = self.setup.cut(Some(shard))?;
        if let Some(state) = state {
            return self.load(setup, state);
        }
        setup.check_listed()?;
        let mut last = None;
        let snapshots = setup.pieces.iter();
        let snapshots = snapshots.map(|piece| self.kept(&setup, piece, &mut last));
        let loaded = Loaded {
            snapshots: snapshots.collect::<Result<_>>()?,
            progress: self.progress()?,
        };
        self.set_up(setup, Some(&loaded))
    }

    /// Returns what is kept for a piece, as it is saved; `None` if it gets new state. `last` is the last copy, for the next piece of it.
    fn kept(
        &self,
        setup: &Setup<A>,
        piece: &Managed,
        last: &mut Option<(usize, Option<Snapshot>)>,
    ) -> Result<Option<Snapshot>> {
        if setup.is_frozen(piece) || !self.setup.has_state(piece) {
            return Ok(None);
        }
        let mut held = self.setup.pieces.iter().enumerate();
        let held = held.find(|(_, held)| {
            let (held_range, range) = (held.range(), piece.range());
            let is_around = held_range.start <= range.start && range.end <= held_range.end;
            held.index == piece.index && is_around
        });
        let Some((index, held)) = held else {
            return Err(OptimizerError::Elsewhere {
                parameter: piece.name.clone(),
                start: piece.range().start,
                end: piece.range().end,
            }
            .into());
        };
        let copy = match last.take() {
            Some((of, copy)) if of == index => copy,
            _ => self.saved(index, held)?,
        };
        let cut = copy.as_ref().map(|copy| copy.cut(held, piece));
        *last = Some((index, copy));
        Ok(cut.transpose()?)
    }

    /// Copies the state of a piece to host memory, as it is saved; `None` if it is frozen.
    pub(super) fn saved(&self, index: usize, piece: &Managed) -> Result<Option<Snapshot>> {
        let Some(Snapshot { step, tensors }) = self.engine.snapshot(index, piece)? else {
            return Ok(None);
        };
        let tensors = piece.kept.iter().zip(tensors);
        let tensors = tensors.map(|(held, tensor)| held.unpack(tensor));
        let tensors = tensors.collect::<CandleResult<_>>()?;
        Ok(Some(Snapshot { step, tensors }))
    }

    /// Returns the sum of the squares of the gradients' elements in this shard, for [`commit_measured`](Self::commit_measured); `None`
    /// without clipping by norm, a loss scale and `skip_non_finite`. The shard need not be the optimizer's own: where none is sharded, but
    /// the ranks' sums are added up, each gets the bits that it would get with shards.
    ///
    /// The first call with a shard allocates. On CUDA each waits for the device.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit) but for the loss scale; [`OptimizerError::Unlisted`] and [`OptimizerError::Piece`] as for
    /// [`shard`](Self::shard).
    pub fn measure(&mut self, gradients: &GradStore, shard: &Shard) -> Result<Option<Measure>> {
        if !self.setup.adjustment.needs_survey() {
            return Ok(None);
        }
        self.setup.check(gradients)?;
        let is_new = match &self.measured {
            Some(measured) => measured.shard.as_ref() != Some(shard),
            None => true,
        };
        if is_new {
            self.measured = None;
            let measured = self.setup.cut(Some(shard))?;
            measured.check_listed()?;
            self.measured = Some(measured);
        }
        let Some(measured) = &self.measured else {
            return Ok(None);
        };
        let squares = self.engine.measure(measured, is_new, gradients);
        if squares.is_err() {
            // The next call makes the tables again.
            self.measured = None;
        }
        Ok(Some(Measure::new(squares?)))
    }

    /// Applies one update as [`commit`](Self::commit), with the sum of all ranks' [`measure`](Self::measure) in place of one over the
    /// gradients here. On CUDA, too, it knows then whether the step is skipped.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    pub fn commit_measured(&mut self, gradients: &GradStore, sum: Measure) -> Result<Committed> {
        let squares = self.setup.adjustment.needs_survey().then(|| sum.squares());
        self.apply(gradients, squares)
    }

    pub(super) fn apply(
        &mut self,
        gradients: &GradStore,
        squares: Option<f64>,
    ) -> Result<Committed> {
        if self.setup.adjustment.loss_scale.is_some() && !self.has_scaled.load(Relaxed) {
            return Err(OptimizerError::Unscaled.into());
        }
        let needs_sum = self.setup.shard.is_some() && self.setup.adjustment.needs_survey();
        if needs_sum && squares.is_none() {
            return Err(OptimizerError::Unmeasured.into());
        }
        self.setup.check(gradients)?;
        let committed = self.engine.commit(&self.setup, gradients, squares)?;
        self.has_scaled.store(false, Relaxed);
        Ok(committed)
    }
}
