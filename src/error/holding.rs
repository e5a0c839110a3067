//! Who holds the memory when it runs out, and what would free some of it.

use std::borrow::Cow;
use std::fmt;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// Something that holds memory while work fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holding {
    /// `parameters`, `accumulated gradients`, `optimizer state`, [`ACTIVATIONS`](Self::ACTIVATIONS) or [`OTHER`](Self::OTHER).
    pub what: Cow<'static, str>,
    /// Its size in bytes, computed from shapes and types; an allocator may round it up. Activations are an estimate of the policy's model.
    pub bytes: u64,
}

impl Holding {
    /// Activations of the micro-batch's samples, by the policy's model.
    pub const ACTIVATIONS: &'static str = "activations (by the fit)";
    /// Memory of this process that is not the trainer's: the batch, other models, other threads.
    pub const OTHER: &'static str = "other memory of this process";

    /// `bytes` bytes of `what`.
    pub fn new(what: impl Into<Cow<'static, str>>, bytes: u64) -> Self {
        let what = what.into();
        Self { what, bytes }
    }
}

/// Another process that holds memory of the same GPU. `{}` is its name and number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Neighbour {
    /// The process ID.
    pub process: u32,
    /// The name that `ps` shows, if this process may read it.
    pub name: Option<String>,
    /// The bytes it holds, if the driver reports them.
    pub bytes: Option<u64>,
}

impl Neighbour {
    /// A process that holds `bytes` bytes.
    pub fn new(process: u32, name: Option<String>, bytes: Option<u64>) -> Self {
        Self {
            process,
            name,
            bytes,
        }
    }
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} ({})", self.process),
            None => write!(f, "process {}", self.process),
        }
    }
}

/// One thing that would help.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Remedy {
    /// What to do.
    pub advice: Cow<'static, str>,
    /// The bytes that it would save at least, where that can be estimated.
    pub saves: Option<u64>,
}

impl Remedy {
    /// A piece of advice, with the bytes that it would save where that can be estimated.
    pub fn new(advice: impl Into<Cow<'static, str>>, saves: Option<u64>) -> Self {
        let advice = advice.into();
        Self { advice, saves }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.advice)?;
        match self.saves {
            Some(bytes) => write!(f, " (saves about {})", ByteSize(bytes)),
            None => Ok(()),
        }
    }
}
