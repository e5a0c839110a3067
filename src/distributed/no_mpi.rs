use std::sync::Arc;

use candle_core::Device;

use super::collectives::Collectives;
use super::control::{Control, Deadline};
use super::launch::Launch;
use crate::error::Result;

/// No MPI: the feature `mpi` is off.
#[derive(Debug)]
pub(super) enum Mpi {}

impl Mpi {
    pub(super) fn start(_: &Launch, _: &mut Deadline) -> Result<Option<Arc<Self>>> {
        Ok(None)
    }

    pub(super) fn control(&self, _: &Launch, _: &mut Deadline) -> Result<Control> {
        match *self {}
    }

    pub(super) fn collectives(
        self: &Arc<Self>,
        _: &Device,
        _: &Arc<Control>,
    ) -> Arc<dyn Collectives> {
        match **self {}
    }

    pub(super) fn abandon(&self) {
        match *self {}
    }

    /// What makes MPI an engine.
    pub(super) fn absent() -> &'static str {
        "build with the feature `mpi` and start with `mpirun`"
    }
}
