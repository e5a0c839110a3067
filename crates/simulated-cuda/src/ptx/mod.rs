//! Runs PTX, the text form of the code that nvcc makes of CUDA kernels, on the host.
//!
//! A [`Module`] is the parsed text; it decodes an entry into a [`Kernel`] at its first use. A launch executes the
//! grid's blocks one after the other, each block warp by warp: an instruction is one loop over the 32 lanes of a warp, so
//! that the host's vector unit does the work and the registers of a warp stay in its first-level cache.
//!
//! Device addresses are host addresses. Every access to global memory is checked against the allocations that the caller's
//! [`Memory`] knows. An unknown instruction makes decoding fail, so that no wrong result is returned silently.
//!
//! Not simulated: textures, tensor cores, clusters, asynchronous copies, recursion, and the timing of anything.

mod accesses;
mod arithmetic;
mod atomics;
mod block;
mod branches;
mod calls;
mod compare;
mod convert;
mod declarations;
mod decode;
mod float;
mod fp8;
mod fused;
mod globals;
mod integer;
mod integer_ops;
mod kernel;
mod layout;
mod limits;
mod logic;
mod memory;
mod module;
mod moves;
mod opcode;
mod operand;
mod reading;
mod registers;
mod rounding;
mod scopes;
mod space;
mod steps;
mod token;
mod types;
mod warp;
mod warp_ops;

#[cfg(test)]
mod tests;

pub use kernel::{Fault, Kernel, Launch, Memory, Param};
pub use limits::{Limits, Sample};
pub use module::Module;
