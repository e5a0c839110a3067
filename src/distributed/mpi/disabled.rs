use std::sync::Arc;

use candle_core::Device;

use crate::distributed::collectives::Collectives;
use crate::distributed::control::{Control, Deadline};
use crate::distributed::launch::Launch;
use crate::error::Result;

/// No MPI: the feature `mpi` is off.
#[derive(Debug)]
pub(in crate::distributed) enum Mpi {}

impl Mpi {
    pub(in crate::distributed) fn start(_: &Launch, _: &mut Deadline) -> Result<Option<Arc<Self>>> {
        Ok(None)
    }

    pub(in crate::distributed) fn control(&self, _: &mut Deadline) -> Result<Control> {
        match *self {}
    }

    pub(in crate::distributed) fn collectives(
        self: &Arc<Self>,
        _: &Device,
        _: &Arc<Control>,
    ) -> Arc<dyn Collectives> {
        match **self {}
    }

    pub(in crate::distributed) fn abandon(&self) {
        match *self {}
    }

    /// What makes MPI an engine.
    pub(in crate::distributed) fn absent() -> &'static str {
        "build with the feature `mpi` and start with `mpirun`"
    }
}
