//! MPI: the engine on CPUs, and by way of the host's memory also between GPUs where NCCL is missing.

mod engine;
mod library;
mod meet;
mod presence;

use std::sync::{Arc, Weak};

use candle_core::Device;
use parking_lot::Mutex;

use crate::distributed::collectives::Collectives;
use crate::distributed::control::{Control, Deadline};
use crate::distributed::launch::Launch;
use crate::error::Result;
use engine::{Engine, Staged};
use library::Library;

/// This process's part of an MPI job.
#[derive(Debug)]
pub(super) struct Mpi(Arc<Library>);

impl Mpi {
    /// Initializes MPI, unless the program has done so.
    pub(super) fn start(launch: &Launch, deadline: &mut Deadline) -> Result<Option<Arc<Self>>> {
        // Groups share it, because the first end of MPI is the last.
        static SHARED: Mutex<Weak<Library>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        let library = match shared.upgrade() {
            Some(library) => library,
            None => Arc::new(Library::start(launch, deadline)?),
        };
        *shared = Arc::downgrade(&library);
        Ok(Some(Arc::new(Self(library))))
    }

    /// Connects all ranks of the job.
    pub(super) fn control(&self, deadline: &mut Deadline) -> Result<Control> {
        meet::meet(&self.0, deadline)
    }

    /// The engine for tensors on this device.
    pub(super) fn collectives(
        self: &Arc<Self>,
        device: &Device,
        control: &Arc<Control>,
    ) -> Arc<dyn Collectives> {
        let engine = Engine::new(Arc::clone(&self.0), Arc::clone(control));
        match device {
            Device::Cpu => Arc::new(engine),
            _ => Arc::new(Staged(engine)),
        }
    }

    /// Leaves MPI as it is when the process ends, because a rank is lost, and MPI's own end waits for all ranks.
    pub(super) fn abandon(&self) {
        self.0.abandon();
    }

    /// What makes MPI an engine.
    pub(super) fn absent() -> &'static str {
        "start with `mpirun`, or with `srun --mpi=pmix`"
    }
}
