use std::fmt;

use serde::{Deserialize, Serialize};

/// A signal of the operating system that ends or preempts a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Signal {
    /// SIGHUP: the terminal is gone.
    HangUp,
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: sent before a job or a machine is taken away. Open MPI's `mpirun` leaves ranks a second to end.
    Terminate,
    /// SIGUSR1: Slurm's warning before the end of a job's time, with `--signal=USR1@60`. `mpirun` passes it on to all ranks.
    User1,
    /// SIGUSR2, which `mpirun` passes on as well.
    User2,
}

impl Signal {
    /// Its number on this system; where there are no signals, Linux's.
    pub fn number(self) -> i32 {
        match self {
            Self::HangUp => 1,
            Self::Interrupt => 2,
            Self::Terminate => 15,
            #[cfg(unix)]
            Self::User1 => libc::SIGUSR1,
            #[cfg(unix)]
            Self::User2 => libc::SIGUSR2,
            #[cfg(not(unix))]
            Self::User1 => 10,
            #[cfg(not(unix))]
            Self::User2 => 12,
        }
    }

    /// The status with which a program that stopped for it should end: 128 and its number, 130 for Ctrl-C.
    pub fn exit_status(self) -> i32 {
        128 + self.number()
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HangUp => "SIGHUP",
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::User1 => "SIGUSR1",
            Self::User2 => "SIGUSR2",
        })
    }
}
