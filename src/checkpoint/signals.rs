//! Waiting for signals between updates.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::{fmt, io};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
#[cfg(unix)]
use signal_hook::low_level;
#[cfg(unix)]
use std::time::Instant;

/// A second SIGINT within this many milliseconds is the same one: a launcher signals a process and its group at once.
#[cfg(unix)]
const AGAIN: u64 = 2000;

/// Handlers are installed once and stay: removing one would not bring back the default action.
static HANDLERS: Mutex<Vec<(Signal, &'static Handler)>> = Mutex::new(Vec::new());

#[derive(Debug, Default)]
struct Handler {
    received: AtomicBool,
    /// It was returned to the caller.
    is_reported: AtomicBool,
    /// When the first one came, in milliseconds after the handler was installed; 0 for none.
    first: AtomicU64,
    /// Without any the default action is taken.
    watches: AtomicUsize,
}

impl Handler {
    /// Begins to note a signal.
    fn begin(signal: Signal) -> io::Result<&'static Self> {
        let mut handlers = HANDLERS.lock();
        let handler = match handlers.iter().find(|(installed, _)| *installed == signal) {
            Some((_, installed)) => *installed,
            None => {
                let new = Self::install(signal)?;
                handlers.push((signal, new));
                new
            }
        };
        // A signal that was not returned still counts.
        if handler.watches.load(SeqCst) == 0 && handler.is_reported.swap(false, SeqCst) {
            handler.received.store(false, SeqCst);
            handler.first.store(0, SeqCst);
        }
        handler.watches.fetch_add(1, SeqCst);
        Ok(handler)
    }

    #[cfg(not(unix))]
    fn install(_: Signal) -> io::Result<&'static Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[cfg(unix)]
    fn install(signal: Signal) -> io::Result<&'static Self> {
        let handler: &'static Self = Box::leak(Box::<Self>::default());
        let (number, installed) = (signal.number(), Instant::now());
        let action = move || {
            // The first SIGINT is noted, a later one ends the process.
            let is_again = signal == Signal::Interrupt && {
                let now = installed.elapsed().as_millis() as u64 + 1;
                let first = handler.first.compare_exchange(0, now, SeqCst, SeqCst);
                first.is_err_and(|first| now.saturating_sub(first) >= AGAIN)
            };
            if is_again || handler.watches.load(SeqCst) == 0 {
                let _ = low_level::emulate_default_handler(number);
            }
            handler.received.store(true, SeqCst);
        };
        // SAFETY: the action reads the clock by `clock_gettime`, changes atomics, and may take the default action, all of which POSIX allows in
        // a handler.
        unsafe { low_level::register(number, action) }?;
        Ok(handler)
    }
}

/// Notes signals while it lives. Afterwards they act as by default.
#[derive(Debug)]
pub(super) struct Watch(Vec<(Signal, &'static Handler)>);

impl Watch {
    pub(super) fn start(signals: &[Signal]) -> io::Result<Self> {
        let mut watch = Self(Vec::new());
        for &signal in signals {
            if watch.0.iter().all(|(known, _)| *known != signal) {
                watch.0.push((signal, Handler::begin(signal)?));
            }
        }
        Ok(watch)
    }

    /// The first of these signals that arrived, which counts as reported then.
    pub(super) fn received(&self) -> Option<Signal> {
        let mut handlers = self.0.iter();
        let (signal, handler) = handlers.find(|(_, it)| it.received.load(SeqCst))?;
        handler.is_reported.store(true, SeqCst);
        Some(*signal)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _handlers = HANDLERS.lock();
        for (_, handler) in &self.0 {
            handler.watches.fetch_sub(1, SeqCst);
        }
    }
}

/// A signal of the operating system that ends or preempts a run.
///
/// ```
/// use candle_headroom::checkpoint::Signal;
///
/// assert_eq!(Signal::Terminate.to_string(), "SIGTERM");
/// assert_eq!((Signal::Terminate.number(), Signal::Terminate.exit_status()), (15, 143));
/// ```
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

#[cfg(unix)]
const USER: (i32, i32) = (libc::SIGUSR1, libc::SIGUSR2);
#[cfg(not(unix))]
const USER: (i32, i32) = (10, 12);

impl Signal {
    fn name_and_number(self) -> (&'static str, i32) {
        match self {
            Self::HangUp => ("SIGHUP", 1),
            Self::Interrupt => ("SIGINT", 2),
            Self::Terminate => ("SIGTERM", 15),
            Self::User1 => ("SIGUSR1", USER.0),
            Self::User2 => ("SIGUSR2", USER.1),
        }
    }

    /// Returns its number on this system; where there are no signals, Linux's.
    pub fn number(self) -> i32 {
        self.name_and_number().1
    }

    /// Returns the status with which a program that stopped for it should exit: 128 plus its number, 130 for Ctrl-C.
    pub fn exit_status(self) -> i32 {
        128 + self.number()
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name_and_number().0)
    }
}
