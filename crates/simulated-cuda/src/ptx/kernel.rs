//! A decoded kernel and its launch parameters.

use super::globals::Globals;
use super::layout::Layout;
use super::limits::Limits;
use super::{block, warp::Instruction};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A parameter of a kernel: its place among the arguments' bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// The first byte, aligned for the parameter's type.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of shared memory beyond what the kernel declares.
    pub dynamic_shared: u32,
}

/// The memory that a kernel may access.
pub trait Memory: Sync {
    /// The live allocation that contains this address.
    fn allocation(&self, address: u64) -> Option<Range<u64>>;

    /// The same, and the distance from the kernel's addresses to the host's, if the kernel has its own.
    fn place(&self, address: u64) -> Option<(Range<u64>, u64)> {
        self.allocation(address).map(|range| (range, 0))
    }
}

/// Why a launch failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// An access outside every allocation.
    IllegalAddress(u64),
    /// An access that is not a multiple of its size.
    MisalignedAddress(u64),
    /// A failed `assert` in the kernel, or a `trap`.
    Assert(String),
    /// Something that is not simulated.
    Unsupported(String),
    /// Threads that wait forever.
    Hang(String),
    /// A warp that has executed as many instructions as it may.
    Endless,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::IllegalAddress(address) => write!(f, "illegal address {address:#x}"),
            Fault::MisalignedAddress(address) => write!(f, "misaligned address {address:#x}"),
            Fault::Assert(text) => write!(f, "assertion failed: {text}"),
            Fault::Unsupported(text) => write!(f, "not simulated: {text}"),
            Fault::Hang(text) => write!(f, "hang: {text}"),
            Fault::Endless => f.write_str("an endless loop"),
        }
    }
}

impl std::error::Error for Fault {}

/// A decoded entry.
pub struct Kernel {
    pub(super) name: String,
    pub(super) params: Vec<Param>,
    pub(super) code: Vec<Instruction>,
    /// The first instruction; functions that the kernel calls come before it.
    pub(super) start: usize,
    pub(super) layout: Layout,
    /// Bytes of declared shared memory.
    pub(super) shared: usize,
    /// Bytes of local memory of one thread.
    pub(super) local: usize,
    /// Whether warps wait for each other.
    pub(super) barriers: bool,
    pub(super) globals: Arc<Globals>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl Kernel {
    /// The entry's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The parameters, in order.
    #[must_use]
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Runs every block of the grid. `arguments`: the parameters' bytes, laid out at [`Param::offset`].
    pub fn launch(
        &self,
        launch: &Launch,
        arguments: &[u8],
        memory: &dyn Memory,
    ) -> Result<(), Fault> {
        let limits = Limits::default();
        self.launch_within(launch, arguments, memory, &limits)
            .map(drop)
    }

    /// The same, with limits of the caller's. Returns the bytes of global memory that were accessed, each as often as it was.
    pub fn launch_within(
        &self,
        launch: &Launch,
        arguments: &[u8],
        memory: &dyn Memory,
        limits: &Limits,
    ) -> Result<u64, Fault> {
        block::run_grid(self, launch, (arguments, memory), limits)
    }
}
