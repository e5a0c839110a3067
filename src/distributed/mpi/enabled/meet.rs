use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use super::library::{Library, engine_error};
use crate::distributed::control::{Control, Meeting};
use crate::distributed::host;
use crate::error::Result;

/// The bytes in which a rank describes itself to the others.
const CARD: usize = 512;

/// Connects all ranks to rank 0, whose addresses and port MPI passes on.
pub(super) fn meet(library: &Library, timeout: Duration) -> Result<Control> {
    let (rank, size) = (library.rank, library.size);
    if size == 1 {
        return Ok(Control::alone(timeout));
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
    let mut card = format!("{port} {} {}", std::process::id(), host::name()).into_bytes();
    if let Some(address) = own_address() {
        card.extend(format!(" {address}").bytes());
    }
    card.resize(CARD, b' ');
    let cards = library.all_gather(&card, timeout)?;
    let first = String::from_utf8_lossy(cards.get(..CARD).unwrap_or_default());
    let mut words = first.split_ascii_whitespace();
    let port = words.next().and_then(|port| port.parse().ok()).unwrap_or(0);
    let process = words.next().unwrap_or_default();
    let meeting = Meeting {
        rank,
        size,
        job: format!("mpi {process}"),
        timeout,
    };
    match listener {
        Some(listener) => meeting.host(listener),
        None => {
            let name = words.next().unwrap_or_default().to_owned();
            let is_here = name == host::name();
            let mut hosts: Vec<_> = words.map(str::to_owned).chain([name]).collect();
            if is_here {
                hosts.insert(0, "127.0.0.1".to_owned());
            }
            meeting.join(&hosts, port)
        }
    }
}

/// The address from which this machine would reach others. Nothing is sent.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}
