//! Moments and master weights in host memory, and the two ways to update them. Both give the same bits, so updates may take turns.
//!
//! By the device: kernels read and write them in place over the bus, in the one launch that changes everything. The host does not wait. For
//! AdamW with f32 moments the bus carries 8 bytes for an element in each direction, 12 with master weights, both directions at once.
//!
//! By the host's cores: gradients and parameters are copied down, 4 bytes for an element of a bf16 model whose gradients are bf16, 8 of an
//! f32 model; new parameters go up, 2 or 4. It is faster where the bus is the limit, and takes room on the host for all three. The
//! parameters come down although there are master weights, because these hold only while nothing else has written to a parameter.
//!
//! To change all or nothing, the cores first compute the new values alone, then the last launch copies these into the parameters and
//! updates the others, and when it is accepted, the cores compute the new state from the same numbers. That reads the state twice,
//! but the second time while the device copies.

mod cores;
mod moments;
mod pinned;
mod staging;

pub use cores::Cores;
pub use moments::Moments;
