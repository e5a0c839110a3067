use std::time::Duration;

use crate::distributed::launch::Launch;
use crate::error::{Error, GroupError};

/// Shows the other ranks of this machine that this one has come to `MPI_Init`, where ranks cannot ask each other anything.
///
/// It is a socket with a name, at which nobody connects: the system removes it with the process, however that ends.
#[derive(Debug)]
pub(super) struct Presence {
    #[cfg(target_os = "linux")]
    _socket: Option<std::os::unix::net::UnixListener>,
}

/// The name of a rank's socket, if the launcher says which job it belongs to.
fn name(launch: &Launch, rank: usize) -> Option<String> {
    let job = launch.mpi_job.as_ref()?;
    Some(format!("candle-headroom/{job}/{rank}"))
}

impl Presence {
    #[cfg(target_os = "linux")]
    pub(super) fn show(launch: &Launch) -> Self {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};

        let address = name(launch, launch.rank);
        let address = address.and_then(|name| SocketAddr::from_abstract_name(name).ok());
        Self {
            _socket: address.and_then(|address| UnixListener::bind_addr(&address).ok()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn show(_: &Launch) -> Self {
        Self {}
    }
}

/// Who is missing where ranks have waited for this long in MPI's initialization.
pub(super) fn missing(launch: &Launch, waited: Duration) -> Error {
    let size = launch.size;
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_here = |rank: &usize| {
        let name = name(launch, *rank);
        let is_it = |name: String| {
            sockets
                .lines()
                .any(|line| line.ends_with(&format!(" @{name}")))
        };
        name.is_some_and(is_it)
    };
    let (here, ranks): (Vec<_>, Vec<_>) = (0..size).partition(is_here);
    if launch.local_size == Some(size) && !ranks.is_empty() && !here.is_empty() {
        return GroupError::Missing {
            ranks,
            size,
            waited,
        }
        .into();
    }
    let local = launch
        .local_size
        .map_or(String::new(), |size| format!(" of {size}"));
    let reason = format!(
        "it did not end within {waited:?}: a rank was not started, died, or has not opened the group. Of {size} ranks, {here:?} have come on this \
         machine, which has {}{local}. End this process: its thread in `MPI_Init` cannot be ended alone",
        here.len()
    );
    GroupError::Engine {
        engine: "MPI".to_owned(),
        operation: "its initialization",
        reason,
    }
    .into()
}
