//! MPI: the engine on CPUs, and by way of the host's memory also between GPUs where NCCL is missing.

mod engine;
mod library;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
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
use library::engine_error;

pub(super) use library::Mpi;

impl Mpi {
    /// Initializes MPI, unless the program has done so.
    pub(super) fn start(launch: &Launch, deadline: &mut Deadline) -> Result<Option<Arc<Self>>> {
        // Groups share it, because the first end of MPI is the last.
        static SHARED: Mutex<Weak<Mpi>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock();
        let mpi = match shared.upgrade() {
            Some(mpi) => mpi,
            None => Arc::new(Self::initialize(launch, deadline)?),
        };
        *shared = Arc::downgrade(&mpi);
        Ok(Some(mpi))
    }

    /// Connects all ranks to rank 0, whose addresses, port and secret MPI passes on.
    pub(super) fn control(&self, launch: &Launch, deadline: &mut Deadline) -> Result<Control> {
        let (rank, size) = (self.rank, self.size);
        if size == 1 {
            return Ok(Control::alone(deadline.timeout()));
        }
        let listen = || -> io::Result<_> {
            let listener = TcpListener::bind(("0.0.0.0", 0))?;
            let port = listener.local_addr()?.port();
            Ok((listener, port))
        };
        let listener = (rank == 0).then(listen).transpose();
        let listener =
            listener.map_err(|e| engine_error(&self.version, "opening a port", e.to_string()))?;
        let port = listener.as_ref().map_or(0, |(_, port)| *port);
        // The standard library keys its hashes with numbers from the system's source of random ones.
        let secret = [0, 1].map(|part| RandomState::new().hash_one((part, std::process::id())));
        let [a, b] = secret;
        let (name, address) = (host::name(), own_address().unwrap_or_default());
        let mut card = format!("{port} {a:016x}{b:016x} {name} {address}").into_bytes();
        card.resize(CARD, b' ');
        let cards = self.all_gather(&card, launch, deadline)?;
        let first = String::from_utf8_lossy(cards.get(..CARD).unwrap_or_default());
        let mut words = first.split_ascii_whitespace();
        let port = words.next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let meeting = Meeting::new(rank, size, "MPI", words.next().unwrap_or_default());
        match listener {
            Some((listener, _)) => meeting.host(listener, deadline),
            None => {
                let first = words.next().unwrap_or_default();
                let mut hosts: Vec<_> = words.chain([first]).map(str::to_owned).collect();
                if first == name {
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
        let engine = Engine::new(Arc::clone(self), Arc::clone(control));
        match device {
            Device::Cpu => Arc::new(engine),
            _ => Arc::new(Staged(engine)),
        }
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
