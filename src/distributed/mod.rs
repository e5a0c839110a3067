//! Several GPUs and machines: the ranks of a job train one model.

mod builder;
mod collectives;
mod control;
mod engines;
mod group;
pub(crate) mod host;
mod launch;
mod mpi;
mod watch;

pub use builder::GroupBuilder;
pub use collectives::Collectives;
pub use group::Group;
pub use watch::Watch;
