use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::Mutex;
use signal_hook::flag;

use crate::checkpoint::signal::Signal;

/// Handlers are installed once and stay: removing one would not bring back the default action.
static HANDLERS: Mutex<BTreeMap<Signal, Handler>> = Mutex::new(BTreeMap::new());

#[derive(Debug, Clone)]
struct Handler {
    received: Arc<AtomicBool>,
    /// It was returned to the caller.
    is_reported: Arc<AtomicBool>,
    /// The default action is taken.
    is_default: Arc<AtomicBool>,
    watches: usize,
}

impl Handler {
    /// Begins to note a signal.
    fn begin(signal: Signal) -> io::Result<Self> {
        let mut handlers = HANDLERS.lock();
        let handler = match handlers.entry(signal) {
            Entry::Occupied(installed) => installed.into_mut(),
            Entry::Vacant(new) => new.insert(Self::install(signal)?),
        };
        if handler.watches == 0 {
            // A signal that was not returned still counts.
            if handler.is_reported.swap(false, SeqCst) {
                handler.received.store(false, SeqCst);
            }
            handler.is_default.store(false, SeqCst);
        }
        handler.watches += 1;
        Ok(handler.clone())
    }

    fn install(signal: Signal) -> io::Result<Self> {
        let handler = Self {
            received: Arc::default(),
            is_reported: Arc::default(),
            is_default: Arc::new(AtomicBool::new(true)),
            watches: 0,
        };
        let number = signal.number();
        // Actions run in this order: the first SIGINT is noted, the second ends the process.
        flag::register_conditional_default(number, Arc::clone(&handler.is_default))?;
        flag::register(number, Arc::clone(&handler.received))?;
        if signal == Signal::Interrupt {
            flag::register(number, Arc::clone(&handler.is_default))?;
        }
        Ok(handler)
    }
}

/// Notes signals while it lives. Afterwards they act as by default.
#[derive(Debug)]
pub(in crate::checkpoint) struct Watch(Vec<(Signal, Handler)>);

impl Watch {
    pub(in crate::checkpoint) fn start(signals: &[Signal]) -> io::Result<Self> {
        let mut watch = Self(Vec::new());
        for &signal in signals {
            if watch.0.iter().all(|(known, _)| *known != signal) {
                watch.0.push((signal, Handler::begin(signal)?));
            }
        }
        Ok(watch)
    }

    /// The first of these signals that arrived, which counts as reported then.
    pub(in crate::checkpoint) fn received(&self) -> Option<Signal> {
        let mut handlers = self.0.iter();
        let (signal, handler) = handlers.find(|(_, it)| it.received.load(SeqCst))?;
        handler.is_reported.store(true, SeqCst);
        Some(*signal)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut handlers = HANDLERS.lock();
        for (signal, _) in &self.0 {
            if let Some(handler) = handlers.get_mut(signal) {
                handler.watches -= 1;
                if handler.watches == 0 {
                    handler.is_default.store(true, SeqCst);
                }
            }
        }
    }
}
