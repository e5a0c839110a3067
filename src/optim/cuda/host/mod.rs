//! Moments in host memory. Kernels read and write them in place over the bus, so an update has the same launches as with moments on the
//! device: the last one changes everything, and nothing is staged.

mod moments;
mod pinned;

pub use moments::Moments;
