//! The processes that train one model together.

use std::env;
use std::path::PathBuf;

use anyhow::{Result, bail};
use candle_headroom::distributed::Group;

use super::choices::Place;
use super::options::WatchOptions;

/// Variables in which launchers say how many processes they have started.
const SIZES: [&str; 4] = [
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
];
const NO_VARIABLES: [(&str, &str); 0] = [];

/// Joins the other processes that the launcher has started. Without `--ranks` the process stays alone, and must be alone.
pub fn open(ranks: bool) -> Result<Group> {
    if ranks {
        // `mpirun` gives a rank a terminal, whatever becomes of its output.
        console::set_colors_enabled(false);
        return Ok(Group::from_environment()?);
    }
    for name in SIZES {
        let size = env::var(name).ok();
        if let Some(size) = size.filter(|size| matches!(size.trim().parse(), Ok(2usize..))) {
            bail!(
                "{name}={size}: each of these processes would train a model of its own; give `--ranks` to train one together"
            );
        }
    }
    Ok(Group::builder().variables(NO_VARIABLES).open()?)
}

/// What an error's line begins with: whose error it is.
pub fn prefix(group: &Group) -> String {
    match group.size() {
        1 => String::new(),
        _ => format!("rank {}: ", group.rank()),
    }
}

/// The options of this rank: a GPU of its own, and only rank 0 writes incidents and samples its machine.
pub fn own_options(group: &Group, device: &mut Place, watch: &mut WatchOptions) {
    if let Place::Cuda(ordinal) = device {
        *ordinal = ordinal.saturating_add(group.local_rank());
    }
    if group.rank() > 0 {
        (watch.incidents, watch.monitor) = (None, false);
    }
}

/// Fails on every rank if one of them has other options or files than rank 0, each described in a line. The trainer compares the models.
pub fn compare(group: &Group, own: &[String]) -> Result<()> {
    let all = group.gather(own.join("\n").as_bytes())?;
    let all: Vec<_> = all
        .iter()
        .map(|bytes| String::from_utf8_lossy(bytes))
        .collect();
    let Some(first) = all.first() else {
        return Ok(());
    };
    for (rank, theirs) in all.iter().enumerate() {
        let pairs = theirs.lines().zip(first.lines());
        if let Some((theirs, first)) = pairs.into_iter().find(|(theirs, first)| theirs != first) {
            bail!(
                "rank {rank} has {theirs}, rank 0 has {first}: start all ranks with the same options and files"
            );
        }
    }
    Ok(())
}

/// Describes an option with a path.
pub fn path(option: &str, path: &Option<PathBuf>) -> String {
    match path {
        Some(path) => format!("`{option} {}`", path.display()),
        None => format!("no `{option}`"),
    }
}
