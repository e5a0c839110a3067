//! Dry runs: programs on the simulated driver, without computing. `headroom dry-run` and candle-headroom's `testing::DryRun` share the table of
//! cards, the environment variables that configure the driver, and the reader of its report.

mod card;
mod report;

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

pub use card::{Card, Fit, UnknownCard};
pub use report::{Device, Held, Piece, Place, Problem, ReadBack, Refused, Report};

/// How a program is run.
#[derive(Debug)]
pub struct Setting<'a> {
    pub card: &'a Card,
    /// The number of such cards.
    pub devices: u32,
    /// The program is ended after so many seconds.
    pub seconds: u64,
    /// The file to which the driver appends its report.
    pub report: &'a Path,
    /// The folder with the driver's libraries, unless they are found already.
    pub libraries: Option<&'a Path>,
}

impl Setting<'_> {
    /// Gives the program the variables that the driver and the loader read. Outside of the pool the driver takes the most that is expected.
    pub fn apply(&self, program: &mut Command) {
        let numbers = [
            (
                "SIMULATED_CUDA_MEMORY",
                self.card.bytes - self.card.reserve().end(),
            ),
            ("SIMULATED_CUDA_CONTEXT", *self.card.context().end()),
            ("SIMULATED_CUDA_CAPABILITY", self.card.capability.into()),
            (
                "SIMULATED_CUDA_MULTIPROCESSORS",
                self.card.multiprocessors.into(),
            ),
            ("SIMULATED_CUDA_DEVICES", self.devices.into()),
            ("SIMULATED_CUDA_SECONDS", self.seconds),
            // As an H200 was seen to do.
            ("SIMULATED_CUDA_JOINS", 1),
        ];
        for (name, number) in numbers {
            program.env(name, number.to_string());
        }
        program.env("SIMULATED_CUDA_MODE", "allocate");
        program.env(
            "SIMULATED_CUDA_NAME",
            format!("{} (dry run)", self.card.name),
        );
        program.env("SIMULATED_CUDA_REPORT", self.report);
        // It may name devices of this machine.
        program.env_remove("CUDA_VISIBLE_DEVICES");
        if let Some(libraries) = self.libraries {
            let mut folders = OsString::from(libraries);
            if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
                folders.push(":");
                folders.push(others);
            }
            program.env("LD_LIBRARY_PATH", folders);
        }
    }
}
