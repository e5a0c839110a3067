//! The program `headroom`: what candle-headroom can tell without a program of your own.
//!
//! `doctor` and `estimate` need no candle, so that the program is built in a minute. `incidents`, `page` and `doctor --ranks` are the library's
//! (feature `library`).

#![forbid(unsafe_code)]

mod doctor;
#[cfg(feature = "dry-run")]
mod dry_run;
mod estimate;
#[cfg(feature = "library")]
mod incidents;
mod output;
#[cfg(feature = "library")]
mod page;

use clap::{Parser, Subcommand};
#[cfg(feature = "dry-run")]
use dry_run::environment as cuda_env;
use output::{Status, say};
#[cfg(not(feature = "dry-run"))]
use without_driver::{cuda_env, dry_run};
#[cfg(not(feature = "library"))]
use without_library::{incidents, page};

/// Is the machine fit, does a model fit, and what went wrong in a run?
#[derive(Debug, Parser)]
#[command(name = "headroom", version)]
#[command(after_help = "\
Exit status: 0 if all is well, 1 if there are findings (the help of each command
says which), 2 for bad input and for output that cannot be written. `dry-run`
has more.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    CudaEnv(cuda_env::Arguments),
    Doctor(doctor::Arguments),
    DryRun(dry_run::Arguments),
    Estimate(estimate::Arguments),
    Incidents(incidents::Arguments),
    Page(page::Arguments),
}

fn main() -> ! {
    let done = match Arguments::try_parse() {
        Ok(arguments) => run(&arguments.command),
        Err(error) if error.use_stderr() => {
            // Nothing can be said where this fails.
            let _ = error.print();
            Ok(Status::BadInput)
        }
        Err(help) => output::print(&help.render().to_string()).map(|()| Status::Good),
    };
    let status = done.unwrap_or_else(|error| {
        say("error", &error.to_string());
        Status::BadInput
    });
    // The output is flushed. An ordinary exit would run the destructors of the driver's libraries, which can wait forever for a call that a
    // probe has left behind.
    signal_hook::low_level::exit(status.number())
}

fn run(command: &Command) -> output::Result<Status> {
    match command {
        Command::CudaEnv(arguments) => cuda_env::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::DryRun(arguments) => dry_run::run(arguments),
        Command::Estimate(arguments) => estimate::run(arguments),
        Command::Incidents(arguments) => incidents::run(arguments),
        Command::Page(arguments) => page::run(arguments),
    }
}

/// A command that this build lacks, and how to get it.
macro_rules! missing {
    ($module:ident, $help:literal, $how:expr) => {
        pub mod $module {
            use crate::output::{Result, Status};

            #[doc = $help]
            #[derive(Debug, clap::Args)]
            pub struct Arguments {
                #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
                given: Vec<std::ffi::OsString>,
            }

            pub fn run(_: &Arguments) -> Result<Status> {
                Err($how.into())
            }
        }
    };
}

/// What the program says where the feature `dry-run` is off.
#[cfg(not(feature = "dry-run"))]
mod without_driver {
    const HOW: &str = "this build of `headroom` has no simulated driver in it: install it with `--features dry-run`";

    missing!(
        cuda_env,
        "Not in this build: it needs `--features dry-run`",
        super::HOW
    );
    missing!(
        dry_run,
        "Not in this build: it needs `--features dry-run`",
        super::HOW
    );
}

/// What the program says where the feature `library` is off.
#[cfg(not(feature = "library"))]
mod without_library {
    use super::output::Result;

    const HOW: &str = "this build of `headroom` has no candle-headroom in it: install it with \
        `--features library`, or with `--features mpi` for ranks under `mpirun`";

    missing!(
        incidents,
        "Not in this build: it needs `--features library`",
        super::HOW
    );
    missing!(
        page,
        "Not in this build: it needs `--features library`",
        super::HOW
    );

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
}
