use std::sync::atomic::Ordering::Relaxed;

use super::engine::{Loaded, Snapshot};
use super::managed::Managed;
use super::optimizer::Fused;
use super::reader::Reader;
use super::setup::Setup;
use crate::error::Result;
use crate::optim::{Algorithm, StateDict};

impl<A: Algorithm> Fused<A> {
    pub(super) fn hyper_parameters<C: FromIterator<(String, f64)>>(&self) -> C {
        let mut rule = self.setup.rule.clone();
        let params = rule.hyper_parameters();
        params
            .map(|(name, _, value)| (name.to_owned(), value.get()))
            .collect()
    }

    /// Returns what is kept of a parameter for `setup`, which has other ranges of it, as it is saved; `None` if it gets new state.
    pub(super) fn kept(&self, setup: &Setup<A>, index: usize) -> Result<Option<Snapshot>> {
        let parameters = self.setup.parameters.get(index);
        let Some((here, there)) = parameters.zip(setup.parameters.get(index)) else {
            return Ok(None);
        };
        if there.ranges.is_empty() || setup.is_frozen(there) || !self.setup.has_state(here) {
            return Ok(None);
        }
        let saved = self.saved(index, here)?.unwrap_or_default();
        saved.cut(&here.ranges, there).map(Some)
    }

    /// Copies the state of a parameter to host memory, as it is saved; `None` if there is none.
    pub(super) fn saved(&self, index: usize, parameter: &Managed) -> Result<Option<Snapshot>> {
        let Some(mut snapshot) = self.engine.snapshot(index, parameter)? else {
            return Ok(None);
        };
        for (held, tensor) in parameter.kept.iter().zip(&mut snapshot.tensors) {
            *tensor = held.unpack(tensor)?;
        }
        Ok(Some(snapshot))
    }

    /// Replaces what there is by this state, cut as `setup` is.
    pub(super) fn load(&mut self, mut setup: Setup<A>, state: &StateDict) -> Result<()> {
        let mut reader = Reader::new(state);
        let progress;
        (setup.rule, setup.groups, progress) = reader.document(&setup);
        let parameters = setup.parameters.iter();
        let snapshots = parameters.map(|p| (!setup.is_frozen(p)).then(|| reader.snapshot::<A>(p)));
        let snapshots: Vec<_> = snapshots.collect();
        reader.finish(&setup.parameters)?;
        setup.check_listed()?;
        let cut = setup.parameters.iter().zip(snapshots);
        let cut = cut.map(|(parameter, snapshot)| {
            let snapshot = snapshot.filter(|_| !parameter.ranges.is_empty());
            let all = 0..parameter.len;
            let cut = snapshot.map(|whole| whole.cut(&[all], parameter));
            cut.transpose()
        });
        let loaded = Loaded {
            snapshots: cut.collect::<Result<_>>()?,
            progress,
        };
        self.set_up(setup, Some(&loaded))?;
        // Earlier losses were multiplied by the old scale.
        self.has_scaled.store(false, Relaxed);
        Ok(())
    }
}
