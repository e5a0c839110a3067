//! Streams, events, modules and library handles of a device, by serial number.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::clock::{Snapshot, StreamKey};
use crate::ptx;
use crate::status::{Outcome, Status};

/// A created stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    pub flags: u32,
    pub priority: i32,
}

/// An event.
#[derive(Debug)]
pub struct Event {
    pub timing: bool,
    /// The time of its last recording, and the marks before it.
    pub recorded: Option<(Instant, Snapshot)>,
    /// How many more queries report that the work before it is not finished.
    pub pending: u32,
    /// The number of collectives before its last recording.
    pub collectives: u64,
}

/// A loaded module.
pub struct Module {
    pub code: ptx::Module,
    /// Functions that were looked up, so that the next look-up returns the same handle.
    pub functions: HashMap<String, u64>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Module")
            .field("functions", &self.functions)
            .finish_non_exhaustive()
    }
}

/// A kernel of a loaded module.
pub struct Function {
    pub module: u64,
    pub kernel: Arc<ptx::Kernel>,
    /// Attributes that the program has set.
    pub attributes: HashMap<u32, i32>,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.kernel.name())
            .finish_non_exhaustive()
    }
}

/// A cuBLAS handle.
#[derive(Clone, Copy, Debug)]
pub struct Blas {
    pub stream: u64,
    pub math_mode: u32,
    pub pointer_mode: u32,
    pub atomics_mode: u32,
    pub has_workspace: bool,
}

/// A cuDNN handle.
#[derive(Clone, Copy, Debug)]
pub struct Dnn {
    pub stream: u64,
}

/// A cuRAND generator.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    pub stream: u64,
    pub seed: u64,
    /// Numbers drawn so far.
    pub position: u64,
}

/// The primary context's own settings.
#[derive(Debug, Default)]
pub struct ContextSettings {
    pub flags: u32,
    pub cache_config: u32,
    pub limits: HashMap<u32, u64>,
}

/// All objects of a device.
#[derive(Debug, Default)]
pub struct Objects {
    last_serial: u64,
    pub streams: HashMap<u64, Stream>,
    pub events: HashMap<u64, Event>,
    pub modules: HashMap<u64, Module>,
    pub functions: HashMap<u64, Function>,
    pub blas: HashMap<u64, Blas>,
    pub dnn: HashMap<u64, Dnn>,
    pub generators: HashMap<u64, Generator>,
    /// How many times the primary context is retained.
    pub retained: u64,
    /// Contexts besides the primary one; they share all state with it.
    pub contexts: Vec<u64>,
    pub settings: ContextSettings,
}

impl Objects {
    /// A number that no object of the device has had.
    pub fn serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    /// Whether the context with this serial (0 is the primary one) exists.
    pub fn has_context(&self, serial: u64) -> bool {
        if serial == 0 {
            self.retained > 0
        } else {
            self.contexts.contains(&serial)
        }
    }

    /// Fails for a created stream that does not exist any more.
    pub fn check_stream(&self, stream: StreamKey) -> Outcome {
        let serial = |raw: u64| raw & 0xffff_ffff_ffff;
        match stream {
            StreamKey::Created(raw) if !self.streams.contains_key(&serial(raw)) => {
                Err(Status::INVALID_HANDLE)
            }
            _ => Ok(()),
        }
    }
}
