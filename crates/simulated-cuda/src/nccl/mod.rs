//! NCCL between processes: each rank writes what it gives to a file, and computes its result from the files of all ranks.
//!
//! Communicators are non-blocking, as this project uses them: a call is in progress until [`entry::ncclCommGetAsyncError`] has been asked a few
//! times, and only then takes its place in the order of work. It is executed when all ranks have made it, and holds up the work behind it.
//! Sums are computed in the order of ranks, so that all runs and ranks agree in every bit.

mod collective;
mod communicator;
pub mod entry;
mod exchange;
mod fault;

/// A `ncclResult_t` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    pub const CUDA_ERROR: Code = Code(1);
    pub const SYSTEM_ERROR: Code = Code(2);
    pub const INTERNAL_ERROR: Code = Code(3);
    pub const INVALID_ARGUMENT: Code = Code(4);
    pub const INVALID_USAGE: Code = Code(5);
    pub const REMOTE_ERROR: Code = Code(6);
    pub const IN_PROGRESS: Code = Code(7);
}

/// The result of an NCCL function.
pub type NcclResult<T = ()> = Result<T, Code>;

fn answer(body: impl FnOnce() -> NcclResult) -> u32 {
    body().err().map_or(0, |Code(code)| code)
}
