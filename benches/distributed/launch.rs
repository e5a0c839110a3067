//! Starts this benchmark under `mpirun`.

use std::env;
use std::process::Command;

use anyhow::{Context, ensure};

/// Whether MPI's launcher started this process.
pub fn is_rank() -> bool {
    let variables = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"];
    variables.iter().any(|name| env::var_os(name).is_some())
}

/// Runs this program, with the arguments of this process, as so many ranks of one thread each.
pub fn start(ranks: usize) -> anyhow::Result<()> {
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "--bind-to", "none"]);
    command.arg("-n").arg(ranks.to_string());
    command
        .arg(env::current_exe()?)
        .args(env::args_os().skip(1));
    command.envs([
        ("RAYON_NUM_THREADS", "1"),
        // Containers run as root.
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ]);
    let status = command.status().context("mpirun: install Open MPI")?;
    ensure!(status.success(), "{ranks} ranks: {status}");
    Ok(())
}
