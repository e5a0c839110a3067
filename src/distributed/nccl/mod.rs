//! NCCL: the engine between GPUs. It is loaded at run time, so that one program runs with and without it.

mod communicator;
mod engine;
mod library;
mod meet;

use std::sync::Arc;

use candle_core::Device;

use crate::distributed::collectives::{Collectives, Watch};
use crate::distributed::control::Control;
use crate::error::Result;
use crate::memory::recover;
use communicator::Communicator;
use engine::Engine;
use meet::meet;

/// Connects the GPUs of all ranks, which have to call this together. All have NCCL afterwards, or none for the reason that is returned.
///
/// NCCL takes some hundred MiB of the GPU outside the pool of a [`DeviceMemory`](crate::DeviceMemory), here and with the first calls: a limit
/// has to leave it that room.
///
/// # Errors
/// The same on all ranks: [`SameDevice`](crate::error::GroupError::SameDevice), and [`Different`](crate::error::GroupError::Different)
/// versions. Then [`Engine`](crate::error::GroupError::Engine) with NCCL's own error, and [`PeerLost`](crate::error::GroupError::PeerLost) on the other ranks.
pub(super) fn open(
    device: &Device,
    control: &Arc<Control>,
    watch: &Watch,
) -> Result<Result<Arc<dyn Collectives>, String>> {
    let met = match meet(device, control)? {
        Ok(met) => met,
        Err(reason) => return Ok(Err(reason)),
    };
    // NCCL cannot use what the pool keeps.
    recover(device).inspect_err(|error| control.fail(&error.to_string()))?;
    let communicator = Communicator::open(met, control, watch)?;
    Ok(Ok(Arc::new(Engine::new(communicator))))
}
