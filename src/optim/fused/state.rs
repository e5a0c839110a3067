use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use candle_core::{Device, Error, Result as CandleResult, Tensor};
use rayon::prelude::*;

use super::engine::{Loaded, Snapshot};
use super::held::Held;
use super::managed::Managed;
use super::optimizer::Fused;
use super::reader::{Document, Reader};
use super::setup::Setup;
use crate::error::Result;
use crate::optim::entries::{OPTIMIZER, PIECES, Pieces, STEP, entry};
use crate::optim::{Algorithm, StateDict};

impl<A: Algorithm> Fused<A> {
    /// Copies the optimizer's state to host memory, with the hyper-parameters, the options of the groups, the counters and the
    /// loss scale. Frozen parameters have no state. Moments of 8 bits are saved in f32, so that any optimizer can load them; loaded into
    /// 8 bits again they are the same bits, in blocks whose largest element is at least 1e-30. On CUDA this waits for the device. [`load_state`](Self::load_state) finds parameters by
    /// name: see [`Group`](crate::optim::Group).
    ///
    /// The state of a sharded optimizer is a part of the whole: of each parameter the elements of the shard, one range behind the other,
    /// with the ranges in the metadata under `pieces`. Only [`StateDict::merge`] takes it.
    ///
    /// # Errors
    /// Errors from copying.
    pub fn state(&self) -> Result<StateDict> {
        let mut state = StateDict::default();
        let pieces = &self.setup.pieces;
        let saved = |(index, piece)| self.saved(index, piece);
        // New memory is slower to come than to fill, and comes faster to several threads. A GPU's context belongs to this one.
        let is_cpu = pieces.iter().all(|piece| piece.var.device().is_cpu());
        let snapshots: Vec<_> = match is_cpu {
            true => pieces
                .par_iter()
                .enumerate()
                .map(saved)
                .collect::<Result<_>>()?,
            false => pieces
                .iter()
                .enumerate()
                .map(saved)
                .collect::<Result<_>>()?,
        };
        let mut snapshots = pieces.iter().zip(snapshots).peekable();
        let mut document = BTreeMap::new();
        for parameter in self.setup.updated() {
            let (mut ranges, mut parts) = (Vec::new(), Vec::new());
            while let Some((piece, snapshot)) =
                snapshots.next_if(|(piece, _)| piece.index <= parameter.index)
            {
                let Some(snapshot) = snapshot else { continue };
                ranges.push((piece.range().start, piece.range().end));
                parts.push(snapshot);
            }
            let snapshot = joined(parameter, parts)?;
            let mut shapes = BTreeMap::new();
            for (Held { kept, .. }, tensor) in parameter.kept.iter().zip(snapshot.tensors) {
                let name = entry(&parameter.name, kept.name);
                state.tensors.insert(name, tensor);
                shapes.insert(kept.name.to_owned(), kept.dims.clone());
            }
            let step = i64::try_from(snapshot.step).unwrap_or(i64::MAX);
            let step = Tensor::new(step, &Device::Cpu)?;
            let name = entry(&parameter.name, STEP);
            state.tensors.insert(name, step);
            let pieces = Pieces {
                elements: parameter.len,
                ranges,
                shapes,
            };
            document.insert(&parameter.name, pieces);
        }
        if self.setup.shard.is_some() {
            let document = serde_json::to_string(&document).map_err(Error::wrap)?;
            state.metadata.insert(PIECES.to_owned(), document);
        }
        let document = Document {
            name: Some(A::NAME.to_owned()),
            params: self.hyper_parameters(),
            groups: Some(self.setup.groups.clone()),
            progress: self.engine.progress()?,
        };
        let document = serde_json::to_string(&document).map_err(Error::wrap)?;
        state.metadata.insert(OPTIMIZER.to_owned(), document);
        Ok(state)
    }

    fn hyper_parameters<C: FromIterator<(String, f64)>>(&self) -> C {
        let mut rule = self.setup.rule.clone();
        let params = rule.hyper_parameters();
        params
            .map(|(name, _, value)| (name.to_owned(), value.get()))
            .collect()
    }

    /// All that decides how parameters move, in words.
    pub(super) fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!("the optimizer is {}", A::NAME)];
        let params: Vec<_> = self.hyper_parameters();
        lines.extend(
            params
                .iter()
                .map(|(name, value)| format!("`{name}` is {value}")),
        );
        let groups = self.setup.groups.iter().enumerate();
        lines.extend(groups.map(|(index, group)| format!("group {index} has {group:?}")));
        lines.push(format!("gradients have {:?}", self.setup.adjustment));
        if let Some(first) = self.setup.updated().next() {
            let kept: Vec<_> = first.kept.iter().map(|held| format!("{held:?}")).collect();
            lines.push(format!("state has {}", kept.join(", ")));
        }
        let is_sharded = self.setup.shard.is_some();
        lines.push(format!(
            "state is {}",
            if is_sharded { "sharded" } else { "whole" }
        ));
        lines
    }

    /// Continues from saved state. Its hyper-parameters, options of groups and loss scale replace those of this optimizer, as in
    /// PyTorch; state without them, such as PyTorch's own by its names, leaves them as they are. Tensors are converted to the
    /// types that are kept here. The state of frozen parameters is ignored, and so are master weights that are not kept here; those that
    /// are missing start from the parameters.
    ///
    /// The new state lies beside the old one until it is complete. A sharded optimizer takes the whole state, too, and keeps the elements
    /// of its shard.
    ///
    /// # Errors
    /// [`StateError`](crate::error::StateError) with every entry that does not fit;
    /// [`OptimizerError`](crate::error::OptimizerError) if the state thaws a group of a type that this optimizer's options are not for;
    /// errors from copying. Nothing has changed then.
    pub fn load_state(&mut self, state: &StateDict) -> Result<()> {
        self.load(self.setup.clone(), state)
    }

    /// Replaces what there is by this state, cut as `setup` is.
    pub(super) fn load(&mut self, mut setup: Setup<A>, state: &StateDict) -> Result<()> {
        let mut reader = Reader::new(state);
        let progress;
        (setup.rule, setup.groups, progress) = reader.document(&setup);
        let parameters = setup.parameters.iter();
        let snapshots = parameters.map(|p| (!setup.is_frozen(p)).then(|| reader.snapshot(p)));
        let snapshots: Vec<_> = snapshots.collect();
        reader.finish(&setup.parameters)?;
        setup.check_listed()?;
        let pieces = setup.pieces.iter().map(|piece| {
            let whole = setup.parameters.get(piece.index);
            let snapshot = snapshots.get(piece.index).and_then(Option::as_ref);
            let whole = whole.zip(snapshot);
            let cut = whole.map(|(parameter, snapshot)| snapshot.cut(parameter, piece));
            cut.transpose()
        });
        let loaded = Loaded {
            snapshots: pieces.collect::<CandleResult<_>>()?,
            progress,
        };
        self.set_up(setup, Some(&loaded))?;
        // Earlier losses were multiplied by the old scale.
        self.has_scaled.store(false, Relaxed);
        Ok(())
    }
}

/// Puts the state of a parameter's pieces one behind the other. That of the whole parameter stays as it is.
fn joined(parameter: &Managed, mut pieces: Vec<Snapshot>) -> CandleResult<Snapshot> {
    if pieces.len() == 1
        && let Some(only) = pieces.pop()
    {
        return Ok(only);
    }
    let tensors = parameter.kept.iter().enumerate().map(|(index, held)| {
        let parts = pieces.iter().filter_map(|piece| piece.tensors.get(index));
        match Vec::from_iter(parts).as_slice() {
            [] => Tensor::zeros(0, held.saved_dtype(), &Device::Cpu),
            parts => Tensor::cat(parts, 0),
        }
    });
    Ok(Snapshot {
        step: pieces.first().map_or(0, |piece| piece.step),
        tensors: tensors.collect::<CandleResult<_>>()?,
    })
}
