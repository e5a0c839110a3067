//! Every point of a job on MPI; see `tests/support/every_point`.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use candle_core::Device;
use candle_headroom::Result;
use candle_headroom::distributed::Group;

#[path = "../support/every_point/mod.rs"]
mod suite;

use crate::launch::{command, turn};
use suite::rank::Backend;

struct Mpi;

impl Backend for Mpi {
    const NAME: &'static str = "mpi";

    fn start(ranks: usize, (name, value): (&str, &Path), output: &Path) -> Vec<Child> {
        // Survivors end by themselves.
        let folder = output.parent().expect("a folder");
        let folder = folder.to_str().expect("a path").to_owned();
        // What it shares in memory goes with the folder, also that of a rank that is killed.
        let shared = ["--mca", "btl_vader_backing_directory", &folder];
        let options = ["--enable-recovery"].iter().chain(&shared);
        let options: Vec<_> = options.copied().collect();
        let mut command = command(ranks, &options);
        let file = File::create(output).expect("a file");
        // It takes longer than the timeout to write one.
        command.env("RUST_BACKTRACE", "0");
        command.env(name, value).stdin(Stdio::null());
        command
            .stdout(file.try_clone().expect("a file"))
            .stderr(file);
        vec![command.spawn().expect("mpirun: install Open MPI")]
    }

    fn number() -> usize {
        let rank = std::env::var("OMPI_COMM_WORLD_RANK").expect("a launcher");
        rank.parse().expect("a number")
    }

    fn open(timeout: Duration, _: Option<&Group>) -> Result<Group> {
        Group::builder().timeout(timeout).open()
    }

    fn device(_: &Group) -> Device {
        Device::Cpu
    }
}

#[test]
fn every_point() {
    // Other tests' ranks do not take the time of these.
    let _turn = turn();
    suite::every_point::<Mpi>();
}
