//! Moments in host memory. Kernels read and write them in place over the bus, so an update has the same launches as with moments on
//! the device, the last of which changes everything.
//!
//! Other ways would need a second version to stay all or none. A ring of device buffers needs new moments beside the old ones, and new
//! parameters until the last moment is computed. So does an update on the host's cores, which besides copies gradients and parameters
//! down before, and parameters up after it has computed them: one after the other, what the bus carries here both ways at once.

mod moments;
mod pinned;

pub use moments::Moments;
