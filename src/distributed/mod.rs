//! Several GPUs and machines: the ranks of a job train one model.

mod collectives;
mod control;
mod watch;

pub use collectives::Collectives;
pub use watch::Watch;
