//! Every point of a job on the simulator's NCCL; see `tests/support/every_point`.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use candle_core::Device;
use candle_headroom::distributed::Group;
use candle_headroom::{DeviceMemory, Result};

#[path = "../../support/every_point/mod.rs"]
mod suite;

use super::launch::{commands, free_port};
use crate::simulator::Simulator;
use suite::rank::Backend;

struct Nccl;

impl Backend for Nccl {
    const NAME: &'static str = "nccl";

    fn start(ranks: usize, (name, value): (&str, &Path), output: &Path) -> Vec<Child> {
        let folder = output.parent().expect("a folder");
        let file = File::create(output).expect("a file");
        let start = |mut command: std::process::Command| {
            command.env(name, value).stdin(Stdio::null());
            // It takes longer than the timeout to write one.
            command.env("RUST_BACKTRACE", "0");
            command.stdout(file.try_clone().expect("a file"));
            command.stderr(file.try_clone().expect("a file"));
            command.spawn().expect("a process")
        };
        commands(ranks, folder).into_iter().map(start).collect()
    }

    fn number() -> usize {
        let rank = std::env::var("RANK").expect("a launcher");
        rank.parse().expect("a number")
    }

    fn open(timeout: Duration, beside: Option<&Group>) -> Result<Group> {
        let builder = Group::builder().timeout(timeout);
        let Some(beside) = beside else {
            return builder.open();
        };
        let port = beside.collect(Ok(vec![free_port()]))?[0];
        let (rank, size) = (beside.rank(), beside.size());
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", size.to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        builder.variables(variables).open()
    }

    fn device(group: &Group) -> Device {
        let memory = DeviceMemory::cuda(group.rank()).open();
        memory.expect("a GPU").device().clone()
    }
}

#[test]
fn every_point() {
    match Simulator::of(0) {
        Some(_) => suite::every_point::<Nccl>(),
        None => eprintln!("skipped: it needs several GPUs"),
    }
}
