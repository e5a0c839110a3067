//! MPI: the engine on CPUs, and by way of the host's memory also between GPUs where NCCL is missing.

mod engine;
mod library;
mod presence;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{TcpListener, UdpSocket};
use std::sync::{Arc, Weak};

use candle_core::Device;
use parking_lot::Mutex;

use crate::distributed::collectives::Collectives;
use crate::distributed::control::{Control, Deadline, Meeting};
use crate::distributed::launch::Launch;
use crate::error::Result;
use crate::host;
use engine::{Engine, Staged};
use library::{Library, engine_error};

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

    /// Connects all ranks to rank 0, whose addresses, port and secret MPI passes on.
    pub(super) fn control(&self, deadline: &mut Deadline) -> Result<Control> {
        let library = &self.0;
        let (rank, size) = (library.rank, library.size);
        if size == 1 {
            return Ok(Control::alone(deadline.timeout()));
        }
        let failed =
            |e: std::io::Error| engine_error(&library.version, "opening a port", e.to_string());
        let listener = (rank == 0).then(|| TcpListener::bind(("0.0.0.0", 0)));
        let listener = listener.transpose().map_err(failed)?;
        let port = listener
            .as_ref()
            .map(TcpListener::local_addr)
            .transpose()
            .map_err(failed)?;
        let port = port.map_or(0, |address| address.port());
        // The standard library keys its hashes with numbers from the system's source of random ones.
        let secret = [0, 1].map(|part| RandomState::new().hash_one((part, std::process::id())));
        let [a, b] = secret;
        let mut card = format!("{port} {a:016x}{b:016x} {}", host::name()).into_bytes();
        if let Some(address) = own_address() {
            card.extend(format!(" {address}").bytes());
        }
        card.resize(CARD, b' ');
        let cards = library.all_gather(&card, deadline)?;
        let first = String::from_utf8_lossy(cards.get(..CARD).unwrap_or_default());
        let mut words = first.split_ascii_whitespace();
        let port = words.next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let meeting = Meeting {
            rank,
            size,
            job: "MPI".to_owned(),
            secret: words.next().unwrap_or_default().to_owned(),
        };
        match listener {
            Some(listener) => meeting.host(listener, deadline),
            None => {
                let name = words.next().unwrap_or_default().to_owned();
                let is_here = name == host::name();
                let mut hosts: Vec<_> = words.map(str::to_owned).chain([name]).collect();
                if is_here {
                    hosts.insert(0, "127.0.0.1".to_owned());
                }
                meeting.join(&hosts, port, deadline)
            }
        }
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

/// The bytes in which a rank describes itself to the others.
const CARD: usize = 512;

/// The address from which this machine would reach others. Nothing is sent.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}
