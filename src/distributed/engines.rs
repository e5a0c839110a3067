//! Which engine moves tensors of a device: NCCL for GPUs if all ranks have it, MPI by way of the host's memory otherwise, or an error with the
//! reason.

use std::sync::Arc;

use candle_core::Device;

use super::collectives::Collectives;
#[cfg(feature = "cuda")]
use super::collectives::Watch;
use super::control::Control;
#[cfg(not(feature = "mpi"))]
use super::control::Deadline;
#[cfg(not(feature = "mpi"))]
use super::launch::Launch;
#[cfg(feature = "mpi")]
pub(super) use super::mpi::Mpi;
#[cfg(feature = "cuda")]
use super::nccl;
use crate::error::{Result, invalid};

/// Opens the engine for a device, whose kind is the same on all ranks.
pub(super) fn open(
    control: &Arc<Control>,
    mpi: Option<&Arc<Mpi>>,
    device: &Device,
    name: &str,
) -> Result<Arc<dyn Collectives>> {
    let mut reason = format!("for tensors in host memory {}", Mpi::absent());
    if let Device::Cuda(_) = device {
        // All ranks have NCCL, or none.
        #[cfg(feature = "cuda")]
        match nccl::open(device, control, &Watch::new(control, "open NCCL"))? {
            Ok(engine) => return Ok(engine),
            Err(absent) => reason = absent,
        }
        #[cfg(not(feature = "cuda"))]
        {
            reason = "build with the feature `cuda`".to_owned();
        }
        if mpi.is_some() {
            tracing::warn!("GPUs exchange gradients by way of the host's memory: {reason}");
        }
    }
    match mpi {
        Some(mpi) => Ok(mpi.collectives(device, control)),
        None => Err(invalid!(
            Group,
            "no engine can exchange tensors on {name} between {} ranks: {reason}",
            control.size()
        )),
    }
}

/// No MPI: the feature `mpi` is off.
#[cfg(not(feature = "mpi"))]
#[derive(Debug)]
pub(super) enum Mpi {}

#[cfg(not(feature = "mpi"))]
impl Mpi {
    pub(super) fn start(_: &Launch, _: &mut Deadline) -> Result<Option<Arc<Self>>> {
        Ok(None)
    }

    pub(super) fn control(&self, _: &Launch, _: usize, _: &mut Deadline) -> Result<Control> {
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

    pub(super) fn end_group(&self, _: &Arc<Control>) {
        match *self {}
    }

    /// What makes MPI an engine.
    pub(super) fn absent() -> &'static str {
        "build with the feature `mpi` and start with `mpirun`"
    }
}
