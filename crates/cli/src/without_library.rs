//! What the program says where the feature `library` is off.

use super::output::{Result, Status};

const HOW: &str = "this build of `headroom` has no candle-headroom in it: install it with \
    `--features library`, or with `--features mpi` for ranks under `mpirun`";

/// A command of the library.
pub mod command {
    use super::{HOW, Result, Status};

    /// Not in this build: it needs `--features library`
    #[derive(Debug, clap::Args)]
    pub struct Arguments {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        given: Vec<std::ffi::OsString>,
    }

    pub fn run(_: &Arguments) -> Result<Status> {
        Err(HOW.into())
    }
}

pub use command as incidents;
pub use command as page;

/// No group of ranks.
#[derive(Debug)]
pub enum Group {}

impl Group {
    pub fn from_environment() -> Result<Self> {
        Err(HOW.into())
    }

    pub fn collect<T>(&self, _: Result<Vec<T>>) -> Result<Vec<T>> {
        match *self {}
    }

    pub fn rank(&self) -> usize {
        match *self {}
    }

    pub fn local_rank(&self) -> usize {
        match *self {}
    }

    pub fn hosts(&self) -> &[String] {
        match *self {}
    }
}
